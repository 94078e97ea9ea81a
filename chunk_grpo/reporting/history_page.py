"""Text of the evaluation history: a summary, an alert, and a Markdown page with tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from chunk_grpo.reporting.comparisons import number, signed
from chunk_grpo.reporting.evidence import BASE
from chunk_grpo.reporting.history import Change, HistoryRow, known
from chunk_grpo.reporting.history_changes import METHOD
from chunk_grpo.reporting.tables import Cell, Row, Table, to_markdown

EVALUATIONS_SHOWN = 30
COMMIT_DIGITS = 10
WORDS: dict[Change, str] = {
    "first": "first evaluation",
    "scorer": "not compared: the scorer changed",
    "prompts": "not compared: no prompt in common",
    "same": "equal on every prompt",
    "unknown": "too few prompts to tell",
    "none": "no change shown",
    "moved": "**moved**",
}

_OTHERS: dict[Change, str] = {
    "same": "are equal on every prompt",
    "unknown": "have too few prompts to tell",
    "scorer": "were not compared because their scorer changed",
    "prompts": "were not compared because they have no prompt in common with their reference",
    "first": "are new",
}


def summary(history: Sequence[HistoryRow], newest: Sequence[HistoryRow]) -> str:
    """One sentence on an evaluation: what is new, moved, or could not be compared.

    Args:
        history: All rows in order of time.
        newest: Rows of the evaluation, which `history` may lack.
    """
    found, repeated = Counter(row.change for row in newest), known(history, newest)
    if repeated:
        return f"Nothing new: all {len(newest)} scores are exactly those of {repeated}."
    if found["first"] == len(newest):
        return f"First evaluation: {len(newest)} scores, with nothing to compare them with."
    parts = [f"{found['moved']} of {len(newest)} scores moved"]
    parts += [f"{found[word]} {text}" for word, text in _OTHERS.items() if found[word]]
    return f"{'; '.join(parts)}."


def alert(history: Sequence[HistoryRow], newest: Sequence[HistoryRow]) -> str | None:
    """Notification in Markdown that lists the scores that moved; None if none did.

    Args:
        history: All rows, including those of the references.
        newest: Rows of the evaluation.
    """
    moved = [row for row in newest if row.change == "moved"]
    if not moved:
        return None
    models = {row.evaluation: row.model_commit for row in history}
    lines = [
        f"{summary(history, newest)} Evaluation {newest[0].evaluation} of preset {newest[0].preset}:",
        "",
    ]
    for row in moved:
        trained = (
            "" if models[row.reference] == row.model_commit else "; the policies were trained again since"
        )
        lines.append(
            f"- {row.scorer} on {row.split}, {_policy(row)}: {number(row.mean)}, {signed(row.difference)} since "
            f"{row.reference} (band ±{number(row.band)}, p {_p_text(row.p_value)}){trained}"
        )
    return "\n".join(lines)


def history_markdown(history: Sequence[HistoryRow], evaluation: str, plot: str) -> str:
    """Markdown page with the trend, the scores of an evaluation with their references, and the evaluations.

    Args:
        history: Rows in order of time.
        evaluation: Name of the evaluation whose scores are shown.
        plot: File name of the trend plot, in the folder of the page.
    """
    newest = [row for row in history if row.evaluation == evaluation]
    first = newest[0]
    when = first.evaluated_at.strftime("%Y-%m-%d %H:%M UTC")
    parts = [
        f"# Evaluations of preset {first.preset}",
        f"{evaluation}, {when}: {summary(history, newest)}",
        f"![Scores over the evaluations, with 95 % intervals]({plot})",
        f"## Scores of {evaluation}",
        to_markdown(scores_table(newest)),
        METHOD,
        "## Evaluations",
        to_markdown(evaluations_table(history)),
    ]
    return "\n\n".join(parts) + "\n"


def scores_table(newest: Sequence[HistoryRow]) -> Table:
    """Scores of an evaluation: mean, interval, and change since their reference."""
    heads = ("score", "policy", "mean", "95 % interval", "difference", "band", "p", "since", "change")
    rows = []
    for row in newest:
        compared = not math.isnan(row.band)
        texts = (
            _policy(row),
            number(row.mean),
            "too few prompts" if math.isnan(row.low) else f"{number(row.low)} to {number(row.high)}",
            "–" if math.isnan(row.difference) else signed(row.difference),
            f"±{number(row.band)}" if compared else "–",
            _p_text(row.p_value) if compared else "–",
            row.reference or "–",
            WORDS[row.change],
        )
        rows.append(Row(f"{row.scorer}, {row.split}", tuple(map(Cell, texts))))
    return Table(heads, tuple(rows))


def evaluations_table(history: Sequence[HistoryRow]) -> Table:
    """The newest evaluations, newest first."""
    by_name: dict[str, list[HistoryRow]] = {}
    for row in history:
        by_name.setdefault(row.evaluation, []).append(row)
    heads = (
        "evaluation",
        "time (UTC)",
        "model",
        "code",
        "image seed",
        "images",
        "scores",
        "moved",
        "scorer changed",
    )
    rows = []
    for name, of_it in list(by_name.items())[::-1][:EVALUATIONS_SHOWN]:
        first, found = of_it[0], Counter(row.change for row in of_it)
        images = max(
            sum(row.num_images for row in of_it if row.scorer == scorer)
            for scorer in {row.scorer for row in of_it}
        )
        texts = (
            first.evaluated_at.strftime("%Y-%m-%d %H:%M"),
            first.model_commit[:COMMIT_DIGITS],
            first.code_commit[:COMMIT_DIGITS],
            str(first.image_seed),
            str(images),
            str(len(of_it)),
            str(found["moved"]),
            str(found["scorer"]),
        )
        rows.append(Row(name, tuple(map(Cell, texts))))
    return Table(heads, tuple(rows))


def _policy(row: HistoryRow) -> str:
    return BASE if row.policy == BASE else f"{row.policy}, {row.mode}"


def _p_text(p_value: float) -> str:
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"
