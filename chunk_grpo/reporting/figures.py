"""Figures as bytes: the same drawing gives an SVG for the page and a PNG for the Markdown.

The colours of the SVG are CSS variables. Equal drawings give equal bytes: the ids have a fixed salt, and dates are
omitted.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chunk_grpo.reporting.palette import GRID, INK, MUTED, ROLES

Draw = Callable[[Axes], None]
"""Function that draws one panel."""

PNG_DPI = 200
# Any: matplotlib types the keys as a Literal of all its parameters, which differs between versions.
STYLE: dict[Any, object] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib, so output is the same on all machines
    "font.size": 9.0,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.0,
    "axes.titlepad": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.formatter.limits": (-5, 6),  # 0.0001 at the tick instead of 1e-4 above the axis
    "axes.formatter.useoffset": False,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "chunk-grpo",
    "mathtext.default": "regular",
}
PAGE_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def svg(draw: Draw, name: str, label: str, size: tuple[float, float]) -> str:
    """An inline SVG of one panel for the page.

    The name is unique in the page and prefixes all ids, `label` is the alternative text, and `size` width and height in
    inches, 72 CSS pixels each.
    """
    out = io.StringIO()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_the_page(out.getvalue(), name, label)


def row_sizes(count: int, columns: int) -> list[int]:
    """Panels in each row: as many rows as `columns` needs, the first ones with a panel more."""
    rows = -(-count // columns)
    return [count // rows + (row < count % rows) for row in range(rows)]


def png(
    draws: Sequence[Draw],
    panel_size: tuple[float, float],
    legend: Draw | None = None,
    strip: float = 0.35,
    columns: int | None = None,
) -> bytes:
    """A PNG of panels side by side, at twice the display size; sizes are in inches.

    `legend` is drawn into a strip of height `strip` above the panels. `columns` is the most panels of a row, None: all
    in one; panels of a row with fewer are wider.
    """
    out = io.BytesIO()
    width, height = panel_size
    columns = columns or len(draws)
    rows = row_sizes(len(draws), columns)
    parts = math.lcm(*rows)  # columns of the grid, of which the panels of a row take equal shares
    heights = [*([strip] if legend else []), *[height] * len(rows)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width * columns, sum(heights)), layout="constrained", facecolor="white")
        grid = figure.add_gridspec(len(heights), parts, height_ratios=heights)
        if legend:
            top = figure.add_subplot(grid[0, :])
            top.set_axis_off()
            legend(top)
        left = iter(draws)
        for row, size in enumerate(rows, start=len(heights) - len(rows)):
            share = parts // size
            for place in range(size):
                next(left)(figure.add_subplot(grid[row, place * share : (place + 1) * share]))
        figure.savefig(out, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return out.getvalue()


def _for_the_page(text: str, name: str, label: str) -> str:
    """Drop the XML head, make ids unique, set the label, and replace colours and fonts for CSS."""
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", PAGE_FONTS, text)
    for colour, variable in ROLES.items():
        text = text.replace(colour, f"var({variable})")
    head = re.match(r'<svg[^>]*(viewBox="[^"]*")[^>]*>', text)
    if head is None:
        raise ValueError("matplotlib wrote no <svg> element with a viewBox")
    xmlns = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    start = f'<svg {xmlns} {head[1]} role="img" aria-label="{html.escape(label)}">'
    return start + text[head.end() :].strip()
