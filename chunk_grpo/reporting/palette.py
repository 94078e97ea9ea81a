"""Colours: one for each variant by its place in params.yaml, from Okabe and Ito's colour-blind-safe set.

Plots are drawn in the light colours. In the page they become CSS variables of the same role, so that one SVG
serves the light and the dark scheme.
"""

from __future__ import annotations

from collections.abc import Sequence

INK = "#1b1f24"
MUTED = "#69707a"
PAPER = "#fffffe"  # white, but told apart from any other
GRID = "#e1e3e6"
SHADE_ODD = "#f1f0ec"
SHADE_EVEN = "#e7e5de"
BASE_COLOUR = "#70757d"

VARIANT_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b4528f", "#c18700", "#3a9fd6")
VARIANT_COLOURS_DARK = ("#4fb0ea", "#ff8b45", "#35c99b", "#e08fc4", "#eeb93c", "#8fd0f7")

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
"""Light colour to the CSS variable that takes its place."""


def variant_index(variants: Sequence[str], variant: str) -> int:
    """Which of the palette's colours a variant has; after the last they start again."""
    return list(variants).index(variant) % len(VARIANT_COLOURS)


def variant_colour(variants: Sequence[str], variant: str) -> str:
    """The light colour of a variant."""
    return VARIANT_COLOURS[variant_index(variants, variant)]
