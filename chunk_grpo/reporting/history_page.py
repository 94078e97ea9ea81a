"""Text of the evaluation history: a summary, an alert, and a Markdown page with tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from chunk_grpo.reporting.comparisons import number, signed
from chunk_grpo.reporting.evidence import BASE
from chunk_grpo.reporting.highlight import escaped
from chunk_grpo.reporting.history import Change, HistoryRow
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
    "moved": "moved",
}
LEGEND = (
    "Grey: the base. Triangle: a moved score. Dashed line: a changed scorer. Dotted line: policies that were trained "
    "again."
)


def summary(newest: Sequence[HistoryRow], repeats: str = "") -> str:
    """One sentence on an evaluation: how many scores are new, moved, or could not be compared.

    `repeats` is the earlier evaluation with exactly the same results; empty if there is none.
    """
    if repeats:
        return f"No change: all {len(newest)} scores equal those of {repeats}."
    found = Counter(row.change for row in newest)
    if found["first"] == len(newest):
        return f"First evaluation: {len(newest)} scores, with nothing to compare them with."
    others = [f"{found[change]} {WORDS[change]}" for change in WORDS if change != "moved" and found[change]]
    return "; ".join([f"{found['moved']} of {len(newest)} scores moved", *others]) + "."


def alert(history: Sequence[HistoryRow], newest: Sequence[HistoryRow]) -> str | None:
    """Notification in Markdown that lists the scores that moved; None if none did.

    `history` includes the rows of the references; `newest` has the evaluation's rows.
    """
    moved = [row for row in newest if row.change == "moved"]
    if not moved:
        return None
    models = {row.evaluation: row.model_commit for row in history}
    lines = [
        f"{summary(newest)} Evaluation {escaped(newest[0].evaluation)} of preset {escaped(newest[0].preset)}:",
        "",
    ]
    for row in moved:
        again = "" if models[row.reference] == row.model_commit else "; the policies were trained again since"
        lines.append(
            f"- {row.scorer} on {row.split}, {_policy(row)}: {number(row.mean)}, {signed(row.difference)} since "
            f"{escaped(row.reference)} (band ±{number(row.band)}, p {_p_text(row.p_value)}){again}"
        )
    return "\n".join(lines)


def history_markdown(history: Sequence[HistoryRow], evaluation: str, plot: str) -> str:
    """Markdown page with the trend, the scores of an evaluation with their references, and the evaluations.

    `history` is in order of time, `plot` the address of the trend plot.
    """
    newest = [row for row in history if row.evaluation == evaluation]
    when = newest[0].evaluated_at.strftime("%Y-%m-%d %H:%M UTC")
    parts = [
        f"# Evaluations of preset {escaped(newest[0].preset)}",
        f"{escaped(evaluation)}, {when}: {summary(newest)}",
        f"![Scores over the evaluations, with 95 % intervals]({plot})",
        LEGEND,
        f"## Scores of {escaped(evaluation)}",
        to_markdown(scores_table(newest)),
        METHOD,
        "## Evaluations",
        to_markdown(evaluations_table(history)),
    ]
    return "\n\n".join(parts) + "\n"


def scores_table(newest: Sequence[HistoryRow]) -> Table:
    """Scores of an evaluation: mean, interval, and change since their reference."""
    heads = ("score", "policy", "mean", "95 % interval", "difference", "band", "p", "since", "change")
    rows = [
        _row(
            f"{row.scorer}, {row.split}",
            _policy(row),
            number(row.mean),
            "too few prompts" if math.isnan(row.low) else f"{number(row.low)} to {number(row.high)}",
            "–" if math.isnan(row.difference) else signed(row.difference),
            "–" if math.isnan(row.band) else f"±{number(row.band)}",
            "–" if math.isnan(row.p_value) else _p_text(row.p_value),
            row.reference or "–",
            Cell(WORDS[row.change], strong=row.change == "moved"),
        )
        for row in newest
    ]
    return Table(heads, tuple(rows))


def evaluations_table(history: Sequence[HistoryRow]) -> Table:
    """The newest evaluations, newest first."""
    heads = ("evaluation", "time (UTC)", "model", "code", "image seed", "scores", "moved", "scorer changed")
    names = list(dict.fromkeys(row.evaluation for row in history))[: -EVALUATIONS_SHOWN - 1 : -1]
    rows = []
    for name in names:
        scores = [row for row in history if row.evaluation == name]
        first, found = scores[0], Counter(row.change for row in scores)
        rows.append(
            _row(
                name,
                first.evaluated_at.strftime("%Y-%m-%d %H:%M"),
                first.model_commit[:COMMIT_DIGITS],
                first.code_commit[:COMMIT_DIGITS],
                str(first.image_seed),
                str(len(scores)),
                str(found["moved"]),
                str(found["scorer"]),
            )
        )
    return Table(heads, tuple(rows))


def _row(head: str, *texts: str | Cell) -> Row:
    return Row(head, tuple(text if isinstance(text, Cell) else Cell(text) for text in texts))


def _policy(row: HistoryRow) -> str:
    return BASE if row.policy == BASE else f"{row.policy}, {row.mode}"


def _p_text(p_value: float) -> str:
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"
