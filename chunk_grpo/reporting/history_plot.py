"""Trend plot of the evaluations: one panel per scorer, split and mode, one line per policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from chunk_grpo.reporting.evidence import BASE, MODES
from chunk_grpo.reporting.figures import png
from chunk_grpo.reporting.history import HistoryRow
from chunk_grpo.reporting.palette import BASE_COLOUR, INK, MUTED, is_crowded, line_style, variant_colour
from chunk_grpo.reporting.plots import BAND_ALPHA, ROUND

PANEL = (4.8, 2.5)
"""Width and height of a panel, in inches."""
HANDLE, LETTER = 0.75, 0.08
"""Width of a legend entry in inches: its line with the space around it, and an upper bound per letter."""
MANY_EVALUATIONS = 40
"""With more evaluations than this, intervals are bands without dots; bars would touch and dots hide the line."""
LABELS = 4
APART = 0.09
"""Distance between the intervals of two policies, in evaluations."""

Panel = tuple[str, str, str]
"""(scorer, split, mode); every panel also shows the base."""


def trend_png(history: Sequence[HistoryRow]) -> bytes:
    """Means with their intervals over the evaluations, as a PNG.

    A score that moved is marked by a triangle in the direction of the change. A dashed line marks a changed scorer; the
    curve is cut there; a dotted line marks policies trained at another commit.

    Args:
        history: Rows in order of time, at least one.
    """
    evaluations = list(dict.fromkeys(row.evaluation for row in history))
    place = {name: index for index, name in enumerate(evaluations)}
    panels = _panels(history)
    variants = _variants(history)
    columns = len({mode for _, _, mode in panels})
    draws = [
        partial(_draw, rows=rows, panel=panel, place=place, variants=variants, times=_times(history))
        for panel, rows in panels.items()
    ]
    handles = _handles(history, variants)
    longest = max(len(str(handle.get_label())) for handle in handles)
    per_line = max(1, int(columns * PANEL[0] / (HANDLE + LETTER * longest)))

    def legend(axes: Axes) -> None:
        drawn = axes.legend(
            handles=handles, loc="center left", ncols=min(per_line, len(handles)), borderaxespad=0
        )
        drawn.set_in_layout(False)  # long names must not squeeze the panels

    strip = 0.15 + 0.22 * math.ceil(len(handles) / per_line)
    return png(draws, PANEL, legend, strip, columns)


def _panels(history: Sequence[HistoryRow]) -> dict[Panel, list[HistoryRow]]:
    """Panel to its rows: scorers and splits in the order of the newest evaluation, with one panel per mode."""
    modes = [mode for mode in MODES if any(row.mode == mode for row in history)] or [BASE]
    newest = [row for row in history if row.evaluation == history[-1].evaluation]
    measured = dict.fromkeys((row.scorer, row.split) for row in (*newest, *history))
    return {
        (scorer, split, mode): [
            row for row in history if (row.scorer, row.split) == (scorer, split) and row.mode in (BASE, mode)
        ]
        for scorer, split in measured
        for mode in modes
    }


def _variants(history: Sequence[HistoryRow]) -> list[str]:
    """Variants in the order of the newest evaluation, for the colours; variants of earlier ones only come last."""
    newest = [row for row in history if row.evaluation == history[-1].evaluation]
    return [name for name in dict.fromkeys(row.policy for row in (*newest, *history)) if name != BASE]


def _times(history: Sequence[HistoryRow]) -> list[datetime]:
    return list({row.evaluation: row.evaluated_at for row in history}.values())


def _draw(
    axes: Axes,
    rows: Sequence[HistoryRow],
    panel: Panel,
    place: Mapping[str, int],
    variants: Sequence[str],
    times: Sequence[datetime],
) -> None:
    """Draw one panel."""
    _draw_events(axes, rows, place)
    drawn = [name for name in (BASE, *variants) if any(row.policy == name for row in rows)]
    for index, policy in enumerate(drawn):
        of_policy = [row for row in rows if row.policy == policy]
        many = len(place) > MANY_EVALUATIONS
        shift = 0.0 if many or is_crowded(variants) else APART * (index - (len(drawn) - 1) / 2)
        _draw_policy(axes, of_policy, [place[row.evaluation] + shift for row in of_policy], variants, many)
    scorer, split, mode = panel
    axes.set_title(f"{scorer}, {split}" if mode == BASE else f"{scorer}, {split}: {mode}")
    axes.set_xlim(-0.6, len(place) - 0.4)
    axes.margins(y=0.12)
    shown = range(len(times) - 1, -1, -math.ceil(len(times) / LABELS))  # the newest is always labelled
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
    axes.set_xticks(shown, [_time_label(times[index], times) for index in shown])


def _draw_policy(
    axes: Axes, rows: Sequence[HistoryRow], x: Sequence[float], variants: Sequence[str], many: bool
) -> None:
    """Draw a policy's line, cut where the scorer changed, with intervals unless there are many variants."""
    is_base = rows[0].policy == BASE
    colour = BASE_COLOUR if is_base else variant_colour(variants, rows[0].policy)
    style = "-" if is_base else line_style(variants, rows[0].policy)
    cuts = [place for place, row in enumerate(rows) if row.change == "scorer"]
    for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        part, at = rows[first:last], x[first:last]
        means = [row.mean for row in part]
        low, high = [row.low for row in part], [row.high for row in part]
        dot = "" if (many or is_crowded(variants)) and len(part) > 1 else "o"
        axes.plot(at, means, color=colour, linestyle=style, marker=dot, markersize=3.6, linewidth=1.4)
        if is_crowded(variants):  # intervals over each other would hide the lines
            continue
        if many:
            axes.fill_between(at, low, high, color=colour, alpha=BAND_ALPHA, linewidth=0)
        else:
            axes.vlines(at, low, high, color=colour, linewidth=1.1)
    for row, at_x in zip(rows, x, strict=True):
        if row.change == "moved":
            marker = "^" if row.difference > 0 else "v"
            axes.plot([at_x], [row.mean], marker, color=colour, markersize=8, markeredgecolor=INK, zorder=4)


def _draw_events(axes: Axes, rows: Sequence[HistoryRow], place: Mapping[str, int]) -> None:
    """Draw lines before evaluations with a changed scorer or with policies trained at another commit."""
    for at in sorted({place[row.evaluation] for row in rows if row.change == "scorer"}):
        axes.axvline(at - 0.5, color=MUTED, linewidth=1.2, linestyle=(0, (5, 3)))
    models = {place[row.evaluation]: row.model_commit for row in rows}
    known = sorted(models)
    for before, at in pairwise(known):
        if models[before] != models[at]:
            axes.axvline(at - 0.42, color=MUTED, linewidth=1.2, linestyle=(0, (1, 2)))


def _time_label(time: datetime, times: Sequence[datetime]) -> str:
    """The day, with the time of day if any day has several evaluations."""
    several = len({one.date() for one in times}) < len(times)
    return time.strftime("%Y-%m-%d\n%H:%M UTC" if several else "%Y-%m-%d")


def _handles(history: Sequence[HistoryRow], variants: Sequence[str]) -> list[Line2D]:
    """Legend entries: the policies, and the marks that occur in the plot."""
    width = 1.8 if is_crowded(variants) else 3
    handles = [Line2D([], [], color=BASE_COLOUR, linewidth=width, label=BASE)]
    for name in variants:
        colour, style = variant_colour(variants, name), line_style(variants, name)
        handles.append(Line2D([], [], color=colour, linestyle=style, linewidth=width, label=name))
    changes = {row.change for row in history}
    if "moved" in changes:
        handles.append(
            Line2D([], [], color="white", marker="^", markeredgecolor=INK, markersize=8, label="moved")
        )
    if "scorer" in changes:
        handles.append(
            Line2D([], [], color=MUTED, linestyle=(0, (5, 3)), linewidth=1.2, label="scorer changed")
        )
    if len({row.model_commit for row in history}) > 1:
        handles.append(
            Line2D([], [], color=MUTED, linestyle=(0, (1, 2)), linewidth=1.2, label="trained again")
        )
    return handles
