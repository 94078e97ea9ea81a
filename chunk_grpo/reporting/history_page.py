"""Page of the evaluation history: a summary, an alert, tables, and a plot of the scores over the evaluations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from chunk_grpo.reporting import plots
from chunk_grpo.reporting.comparisons import number, p_text, signed
from chunk_grpo.reporting.evidence import BASE
from chunk_grpo.reporting.figures import png
from chunk_grpo.reporting.history import ALPHA, Change, HistoryRow
from chunk_grpo.reporting.markdown import escaped
from chunk_grpo.reporting.palette import INK, MUTED, variant_colour
from chunk_grpo.reporting.series import Curve
from chunk_grpo.reporting.tables import Cell, Row, Table, text_row, to_markdown

EVALUATIONS_SHOWN = 30
PANEL = (4.8, 2.5)
"""Width and height of a panel, in inches."""
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
LEGEND = "Grey: the base. Triangle: a moved score. Dashed line: a changed scorer. Bands: 95 % intervals."
METHOD = (
    "A score is compared with its reference: the evaluation in which it last moved or its scorer changed, or the first "
    "one. Differences are paired by prompt. The band is half the width of the report’s interval of the difference, at "
    f"the level 1 − {ALPHA:g} / number of compared scores: if nothing changed, all differences of an evaluation lie "
    f"within their bands in about {1 - ALPHA:.0%} of evaluations or more. The intervals of the means are the report’s "
    "95 % intervals, not corrected for multiple comparisons."
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
    models = {row.evaluation: row.model_commit for row in history}
    lines = []
    for row in (row for row in newest if row.change == "moved"):
        again = "" if models[row.reference] == row.model_commit else "; the policies were trained again since"
        lines.append(
            f"- {row.scorer} on {row.split}, {_policy(row)}: {number(row.mean)}, {signed(row.difference)} since "
            f"{escaped(row.reference)} (band ±{number(row.band)}, p {p_text(row.p_value)}){again}"
        )
    if not lines:
        return None
    what = f"Evaluation {escaped(newest[0].evaluation)} of preset {escaped(newest[0].preset)}:"
    return "\n".join([f"{summary(newest)} {what}", "", *lines])


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
    rows = []
    for row in newest:
        texts = (
            _policy(row),
            number(row.mean),
            "too few prompts" if math.isnan(row.low) else f"{number(row.low)} to {number(row.high)}",
            "–" if math.isnan(row.difference) else signed(row.difference),
            "–" if math.isnan(row.band) else f"±{number(row.band)}",
            "–" if math.isnan(row.p_value) else p_text(row.p_value),
            row.reference or "–",
        )
        change = Cell(WORDS[row.change], strong=row.change == "moved")
        rows.append(Row(f"{row.scorer}, {row.split}", (*map(Cell, texts), change)))
    return Table(heads, tuple(rows))


def evaluations_table(history: Sequence[HistoryRow]) -> Table:
    """The newest evaluations, newest first."""
    heads = ("evaluation", "time (UTC)", "model", "code", "image seed", "scores", "moved", "scorer changed")
    names = list(dict.fromkeys(row.evaluation for row in history))[: -EVALUATIONS_SHOWN - 1 : -1]
    rows = []
    for name in names:
        scores = [row for row in history if row.evaluation == name]
        one, found = scores[0], Counter(row.change for row in scores)
        time, commits = one.evaluated_at.strftime("%Y-%m-%d %H:%M"), (one.model_commit, one.code_commit)
        counts = (one.image_seed, len(scores), found["moved"], found["scorer"])
        rows.append(text_row(name, time, *(each[:COMMIT_DIGITS] for each in commits), *map(str, counts)))
    return Table(heads, tuple(rows))


def trend_png(history: Sequence[HistoryRow]) -> bytes:
    """Means with their intervals over the evaluations, in order of time, as a PNG: a panel per scorer, split and mode.

    A score that moved is marked by a triangle in the direction of the change, a changed scorer by a dashed line.
    """
    # The newest evaluation sets the order of panels and colours; what only earlier ones have comes last.
    rows = [row for row in history if row.evaluation == history[-1].evaluation] + list(history)
    variants = [name for name in dict.fromkeys(row.policy for row in rows) if name != BASE]
    modes = [mode for mode in dict.fromkeys(row.mode for row in rows) if mode != BASE] or [BASE]
    draws = [
        partial(
            _draw,
            history=history,
            rows=[row for row in history if (row.scorer, row.split) == of and row.mode in (BASE, mode)],
            title=", ".join(of) + ("" if mode == BASE else f": {mode}"),
            variants=variants,
        )
        for of in dict.fromkeys((row.scorer, row.split) for row in rows)
        for mode in modes
    ]
    legend = partial(plots.draw_legend, variants=variants) if variants else None
    return png(draws, PANEL, legend, plots.legend_height(variants), len(modes))


def _draw(
    axes: Axes, history: Sequence[HistoryRow], rows: Sequence[HistoryRow], title: str, variants: Sequence[str]
) -> None:
    """Draw one panel."""
    times = {row.evaluation: row.evaluated_at for row in history}
    places = {name: place for place, name in enumerate(times)}
    curves = {}
    for policy in dict.fromkeys(row.policy for row in rows):
        points = [(places[r.evaluation], r.mean, r.low, r.high) for r in rows if r.policy == policy]
        curves[policy] = Curve(*map(np.array, zip(*points, strict=True)))
    plots.draw_curves(axes, curves, variants, title)
    for row in rows:
        at = places[row.evaluation]
        if row.change == "moved":
            marker, colour = "^" if row.difference > 0 else "v", variant_colour(variants, row.policy)
            axes.plot([at], [row.mean], marker, color=colour, markersize=8, markeredgecolor=INK, zorder=4)
        elif row.change == "scorer":
            axes.axvline(at - 0.5, color=MUTED, linewidth=1.2, linestyle=(0, (5, 3)))
    labels = [time.strftime("%Y-%m-%d\n%H:%M UTC") for time in times.values()]
    shown = slice(None, None, -(1 + (len(labels) - 1) // 4))  # about four, and always the newest
    axes.set_xticks(range(len(labels))[shown], labels[shown])
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.set_xlabel("")


def _policy(row: HistoryRow) -> str:
    return BASE if row.policy == BASE else f"{row.policy}, {row.mode}"
