"""Panels of the report: each function draws one plot into the given axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from chunk_grpo.reporting.comparisons import Comparison
from chunk_grpo.reporting.palette import (
    BASE_COLOUR,
    GRID,
    INK,
    MUTED,
    PAPER,
    SHADE_EVEN,
    SHADE_ODD,
    is_crowded,
    line_style,
    variant_colour,
)
from chunk_grpo.reporting.series import Chunk, Curve

SDE_COLOUR = INK
ODE_COLOUR = BASE_COLOUR
BAND_ALPHA = 0.16
SHARED_ALPHA = 0.1
"""Opacity of bands that lie over each other."""

ROUND = (1, 2, 5, 10)
"""Leading digits of the distance between ticks."""


def draw_profile(axes: Axes, sde: Curve, ode: Curve, shown: Sequence[Chunk], guided: Sequence[Chunk] | None) -> None:
    """Draw the relative L1 distance per step (the paper's Fig. 3) over the shaded chunks of the plan in use.

    `sde` is the curve of the sampler used in training, `ode` of the deterministic one. The chunks of the guided plan
    are ticks under the curves.
    """
    top = 1.16 * max(sde.high.max(), ode.high.max())
    bottom = -0.09 * top if guided else 0.0
    for index, chunk in enumerate(shown):
        left, right = chunk.first_step - 0.5, chunk.first_step + chunk.num_steps - 0.5
        axes.axvspan(left, right, color=SHADE_EVEN if index % 2 else SHADE_ODD, linewidth=0, zorder=0)
        middle = (left + right) / 2
        axes.text(middle, 0.955 * top, f"{index}", ha="center", va="center", color=MUTED, fontsize=9)
    for curve, colour, style, name in ((sde, SDE_COLOUR, "-", "SDE"), (ode, ODE_COLOUR, (0, (4, 2)), "ODE")):
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=BAND_ALPHA, linewidth=0)
        axes.plot(curve.x, curve.mean, color=colour, linestyle=style, marker="o", markersize=3.2)
        at = 1 if len(curve.x) > 1 else 0
        place = (float(curve.x[at]), float(curve.high[at]))
        axes.annotate(name, place, (5, 5), textcoords="offset points", color=colour, fontweight="bold")
    if guided:
        _draw_ticks(axes, guided, bottom)
    axes.set_xlim(-0.5, float(max(sde.x[-1], ode.x[-1])) + 1.2)
    axes.set_ylim(bottom, top)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= top])
    axes.set_xlabel("step, from noise to image")
    axes.set_title("relative L1 distance between steps, Eq. (15)")


def _draw_ticks(axes: Axes, guided: Sequence[Chunk], bottom: float) -> None:
    """Draw the boundaries of the guided plan on a line under the curves."""
    last = guided[-1]
    edges = [chunk.first_step - 0.5 for chunk in guided] + [last.first_step + last.num_steps - 0.5]
    axes.hlines(bottom / 2, edges[0], edges[-1], color=MUTED, linewidth=1)
    axes.vlines(edges, bottom * 0.8, bottom * 0.2, color=MUTED, linewidth=1.6)
    end = (edges[-1], bottom / 2)
    axes.annotate("guided", end, (6, 0), textcoords="offset points", va="center", color=MUTED, fontsize=8)


def draw_curves(
    axes: Axes,
    curves: Mapping[str, Curve],
    variants: Sequence[str],
    title: str,
    limit: float | None = None,
    along: str = "iteration",
) -> None:
    """Draw a metric by iteration: one line per variant, with its band unless there are many variants.

    `variants` are all in order, for the colours; `limit` is the value of a horizontal reference line; `along` is the
    label of the x-axis.
    """
    for variant, curve in curves.items():
        colour, style = variant_colour(variants, variant), line_style(variants, variant)
        if is_crowded(variants):  # overlapping bands and dots would hide the lines
            dot = "." if len(curve.x) == 1 else ""
            axes.plot(curve.x, curve.mean, color=colour, linestyle=style, linewidth=1.4, marker=dot)
            continue
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=SHARED_ALPHA, linewidth=0.6)
        few = len(curve.x) <= 12
        axes.plot(curve.x, curve.mean, color=colour, marker="o" if few else "", markersize=3.2)
    if limit is not None:
        axes.axhline(limit, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=ROUND))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
    axes.set_xlabel(along)
    axes.set_title(title)
    axes.margins(x=0.02)


def draw_tradeoff(
    axes: Axes,
    ways: Mapping[str, tuple[Curve, Curve]],
    variants: Sequence[str],
    title: str,
    along: str = "training reward on the same images",
) -> None:
    """Draw a score over another quantity: a line per variant from the base to a dot, its last policy.

    `ways` has the curves of quantity and score at the same iterations, `variants` all in order, for the colours;
    `along` is the label of the x-axis.
    """
    for variant, (passed, score) in ways.items():
        colour, style = variant_colour(variants, variant), line_style(variants, variant)
        axes.plot(passed.mean, score.mean, color=colour, linestyle=style, linewidth=1.4)
        axes.plot(passed.mean[-1:], score.mean[-1:], "o", color=colour, markersize=5)
        axes.plot(passed.mean[:1], score.mean[:1], "o", color=BASE_COLOUR, markersize=5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
    axes.set_xlabel(along)
    axes.set_title(title)
    axes.margins(0.06)


def draw_differences(axes: Axes, rows: Sequence[Comparison], variants: Sequence[str], title: str) -> None:
    """Draw differences from the base with intervals: filled for tuned, hollow for hybrid; dots are seeds."""
    for place, row in enumerate(rows):
        colour = variant_colour(variants, row.variant)
        interval = row.difference
        if interval.verdict != "unknown":
            axes.plot([interval.low, interval.high], [place, place], color=colour, linewidth=2.4)
        if len(row.per_seed) > 1:
            axes.plot(row.per_seed, [place + 0.27] * len(row.per_seed), ".", color=colour, markersize=4, alpha=0.65)
        hollow = row.mode == "hybrid"
        axes.plot(
            [interval.mean], [place], "o", markersize=7, color=colour, markeredgewidth=1.8,
            markerfacecolor=PAPER if hollow else colour,
        )  # fmt: skip
    axes.axvline(0, color=MUTED, linewidth=1.2)
    if is_crowded(variants):  # a policy's rows share a label
        places: dict[str, list[int]] = {}
        for place, row in enumerate(rows):
            places.setdefault(row.variant, []).append(place)
        axes.set_yticks([sum(found) / len(found) for found in places.values()], list(places))
        edges = [found[-1] + 0.64 for found in places.values()][:-1]
        axes.hlines(edges, 0, 1, transform=axes.get_yaxis_transform(), color=GRID, linewidth=0.8)
    else:
        axes.set_yticks(range(len(rows)), [f"{row.variant}, {row.mode}" for row in rows])
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=ROUND))
    axes.margins(x=0.06)
    axes.set_title(title)


LEGEND_COLUMNS = 4
"""Columns of the legend with many variants: as many as fit above two panels side by side."""


def draw_legend(axes: Axes, variants: Sequence[str]) -> None:
    """Draw the legend of the variants for the Markdown figures; the HTML page has its own legend."""
    crowded = is_crowded(variants)
    width = 1.8 if crowded else 3  # dashes scale with the line width
    looks = [(v, variant_colour(variants, v), line_style(variants, v)) for v in variants]
    handles = [Line2D([], [], color=c, linestyle=s, linewidth=width, label=v) for v, c, s in looks]
    if not crowded:
        axes.legend(handles=handles, loc="center left", ncols=len(handles), borderaxespad=0)
        return
    legend = axes.legend(handles=handles, loc="center left", ncols=LEGEND_COLUMNS, borderaxespad=0, handlelength=3.4)
    legend.set_in_layout(False)  # long names must not squeeze the panels


def legend_height(variants: Sequence[str]) -> float:
    """Height of the legend in inches."""
    return 0.15 + 0.2 * math.ceil(len(variants) / LEGEND_COLUMNS) if is_crowded(variants) else 0.35
