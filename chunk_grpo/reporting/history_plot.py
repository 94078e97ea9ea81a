"""Trend plot of the evaluations: one panel per scorer, split and mode, one line per policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from chunk_grpo.reporting import plots
from chunk_grpo.reporting.evidence import BASE, MODES
from chunk_grpo.reporting.figures import png
from chunk_grpo.reporting.history import HistoryRow
from chunk_grpo.reporting.palette import BASE_COLOUR, INK, MUTED, is_crowded, line_style, variant_colour

PANEL = (4.8, 2.5)
"""Width and height of a panel, in inches."""
MANY_EVALUATIONS = 40
"""With more evaluations than this, intervals are thin and means have no dots."""
LABELS = 4
"""Largest number of labelled evaluations."""
WIDTH = 0.27
"""Distance between the intervals of the first and the last policy, in evaluations."""


def trend_png(history: Sequence[HistoryRow]) -> bytes:
    """Means with their intervals over the evaluations, one row at least, in order of time, as a PNG.

    A score that moved is marked by a triangle in the direction of the change. A dashed line marks a changed scorer; the
    curve is cut there; a dotted line marks policies trained at another commit.
    """
    # The newest evaluation sets the order of panels and colours; what only earlier ones have comes last.
    rows = [row for row in history if row.evaluation == history[-1].evaluation] + list(history)
    variants = [name for name in dict.fromkeys(row.policy for row in rows) if name != BASE]
    modes = [mode for mode in MODES if any(row.mode == mode for row in history)] or [BASE]
    times = {row.evaluation: row.evaluated_at for row in history}
    draws = [
        partial(
            _draw,
            rows=[row for row in history if (row.scorer, row.split) == of and row.mode in (BASE, mode)],
            title=", ".join(of) + ("" if mode == BASE else f": {mode}"),
            variants=variants,
            times=times,
        )
        for of in dict.fromkeys((row.scorer, row.split) for row in rows)
        for mode in modes
    ]
    legend = partial(plots.draw_legend, variants=variants) if variants else None
    return png(draws, PANEL, legend, plots.legend_height(variants), len(modes))


def _draw(
    axes: Axes,
    rows: Sequence[HistoryRow],
    title: str,
    variants: Sequence[str],
    times: Mapping[str, datetime],
) -> None:
    """Draw one panel."""
    places = {name: place for place, name in enumerate(times)}
    for at in {places[row.evaluation] for row in rows if row.change == "scorer"}:
        axes.axvline(at - 0.5, color=MUTED, linewidth=1.2, linestyle=(0, (5, 3)))
    for (_, before), (at, model) in pairwise(sorted({(places[r.evaluation], r.model_commit) for r in rows})):
        if model != before:
            axes.axvline(at - 0.42, color=MUTED, linewidth=1.2, linestyle=(0, (1, 2)))
    drawn = [name for name in (BASE, *variants) if any(row.policy == name for row in rows)]
    for policy, shift in zip(drawn, np.linspace(-WIDTH / 2, WIDTH / 2, len(drawn)), strict=True):
        of_policy = [row for row in rows if row.policy == policy]
        _draw_policy(axes, of_policy, [places[row.evaluation] + shift for row in of_policy], variants)
    axes.set_title(title)
    axes.set_xlim(-0.6, len(times) - 0.4)
    axes.margins(y=0.12)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=plots.ROUND))
    labels = [time.strftime("%Y-%m-%d\n%H:%M UTC") for time in times.values()]
    shown = slice(None, None, -(1 + (len(labels) - 1) // LABELS))  # the newest is always labelled
    axes.set_xticks(range(len(labels))[shown], labels[shown])


def _draw_policy(axes: Axes, rows: Sequence[HistoryRow], x: Sequence[float], variants: Sequence[str]) -> None:
    """Draw a policy's line, cut where the scorer changed, with intervals unless there are many variants."""
    policy, is_dense = rows[0].policy, len(rows) > MANY_EVALUATIONS
    colour = BASE_COLOUR if policy == BASE else variant_colour(variants, policy)
    style = "-" if policy == BASE else line_style(variants, policy)
    cuts = [place for place, row in enumerate(rows) if row.change == "scorer"]
    points = np.array(
        [(at, row.mean, row.mean - row.low, row.high - row.mean) for at, row in zip(x, rows, strict=True)]
    )
    for part in np.split(points, [cut for cut in cuts if cut > 0]):
        axes.errorbar(
            part[:, 0], part[:, 1], None if is_crowded(variants) else part[:, 2:].T, color=colour, linestyle=style,
            linewidth=1.4, marker="o", markersize=0 if is_dense else 3.6, elinewidth=0.4 if is_dense else 1.1,
        )  # fmt: skip
    for row, at in zip(rows, x, strict=True):
        if row.change == "moved":
            marker = "^" if row.difference > 0 else "v"
            axes.plot([at], [row.mean], marker, color=colour, markersize=8, markeredgecolor=INK, zorder=4)
