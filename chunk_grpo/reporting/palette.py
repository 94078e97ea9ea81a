"""Colours of the variants, by their order in params.yaml, from Okabe and Ito's colour-blind-safe set.

If there are more variants than colours, the colours repeat with another dash pattern in each round.

Plots are drawn in the light colours. In the page these become CSS variables with the same role, so that one SVG fits
the light and the dark scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from chunk_grpo.reporting.evidence import BASE

INK = "#1b1f24"
MUTED = "#69707a"
PAPER = "#fffffe"  # distinct from other white elements, so that it can be replaced
GRID = "#e1e3e6"
SHADE_ODD = "#f1f0ec"
SHADE_EVEN = "#e7e5de"
BASE_COLOUR = "#70757d"

VARIANT_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b4528f", "#c18700", "#3a9fd6")
VARIANT_COLOURS_DARK = ("#4fb0ea", "#ff8b45", "#35c99b", "#e08fc4", "#eeb93c", "#8fd0f7")

DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (6, 2),
    (1.1, 1.5),
    (6, 1.8, 1.1, 1.8),
    (6, 1.5, 1.1, 1.5, 1.1, 1.5),
    (2.6, 1.2),
)
"""Dash pattern of each round through the colours: dashes and gaps in line widths; the first is solid."""

MANY = len(VARIANT_COLOURS)
"""With more variants than this, colours repeat and the page shows summaries instead of lists."""

ROLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    PAPER: "--paper",
    SHADE_ODD: "--shade-odd",
    SHADE_EVEN: "--shade-even",
    BASE_COLOUR: "--base",
    **{colour: f"--variant-{index}" for index, colour in enumerate(VARIANT_COLOURS)},
}
"""Light colour to the CSS variable that replaces it."""


def variant_index(variants: Sequence[str], variant: str) -> int:
    """Index of a variant's colour; colours repeat after the last one."""
    return list(variants).index(variant) % len(VARIANT_COLOURS)


def variant_colour(variants: Sequence[str], variant: str) -> str:
    """The light colour of a variant, or of the base."""
    return BASE_COLOUR if variant == BASE else VARIANT_COLOURS[variant_index(variants, variant)]


def variant_dash(variants: Sequence[str], variant: str) -> int:
    """Index of a variant's pattern in `DASHES`; patterns repeat after the last one."""
    return list(variants).index(variant) // len(VARIANT_COLOURS) % len(DASHES)


def line_style(variants: Sequence[str], variant: str) -> Literal["-"] | tuple[float, tuple[float, ...]]:
    """Line style of a variant for matplotlib; the base's is solid."""
    dash = DASHES[0] if variant == BASE else DASHES[variant_dash(variants, variant)]
    return (0.0, dash) if dash else "-"


def dash_gradient(dash: Sequence[float], unit: float) -> str:
    """Colour stops of a repeating CSS gradient that looks like the dashed line, in the colour --c.

    `dash` is one of `DASHES` other than the solid one, `unit` the width of the line in ems.
    """
    stops, at = [], 0.0
    for index, length in enumerate(dash):
        colour = "transparent" if index % 2 else "var(--c)"
        end = at + unit * length
        stops.append(f"{colour} {at:.2f}em {end:.2f}em")
        at = end
    return ", ".join(stops)


def is_crowded(variants: Sequence[str]) -> bool:
    """Whether there are more than `MANY` variants."""
    return len(variants) > MANY
