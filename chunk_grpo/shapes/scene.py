"""Content of an image of the shapes world: coloured shapes on a plain background.

Coordinates are pixels of a `SIZE` x `SIZE` image, x to the right and y downwards, (0, 0) is the upper left corner.
"""

from __future__ import annotations

from dataclasses import dataclass

SIZE = 32
"""Side of an image in pixels."""

SHAPES = ("circle", "square", "triangle", "cross")

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 40, 40),
    "yellow": (250, 220, 40),
    "green": (50, 160, 70),
    "blue": (40, 90, 210),
    "purple": (140, 60, 180),
}

BACKGROUNDS: dict[str, tuple[int, int, int]] = {"white": (245, 245, 245), "black": (20, 20, 20)}

MIN_RADIUS, MAX_RADIUS = 4.5, 6.0
"""Range of half the side of a bounding box, in pixels."""


@dataclass(frozen=True)
class Thing:
    """One shape in one colour; its bounding box has the centre (x, y) and the sides 2 * radius."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Scene:
    """Background colour and non-overlapping objects."""

    background: str
    things: tuple[Thing, ...]
