"""Render scenes: every shape is a signed distance function, anti-aliased over one pixel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chunk_grpo.shapes.scene import BACKGROUNDS, COLOURS, SHAPES, SIZE, Scene

CROSS_ARM = 1 / 3
"""Half the width of a cross's arms, as a fraction of its radius."""


def signed_distances(x: Tensor, y: Tensor) -> Tensor:
    """Signed distance of points to each of `SHAPES` with unit radius, [len(SHAPES), *x.shape]; negative inside.

    x is to the right and y downwards from the centre, in units of the radius, both of any one shape.
    """
    circle = torch.hypot(x, y) - 1
    square = torch.maximum(x.abs(), y.abs()) - 1
    # An isosceles triangle that fills its box: apex at (0, -1), base at y = 1, sides of slope 2.
    slant = (2 * x.abs() - (y + 1)) / 5**0.5
    triangle = torch.maximum(slant, y - 1)
    bar = torch.maximum(x.abs() - 1, y.abs() - CROSS_ARM)
    post = torch.maximum(x.abs() - CROSS_ARM, y.abs() - 1)
    return torch.stack((circle, square, triangle, torch.minimum(bar, post)))


def render(scenes: Sequence[Scene], device: torch.device | str = "cpu") -> Tensor:
    """Render B scenes: float32 [B, 3, SIZE, SIZE] in [0, 1], red, green, blue."""
    canvas = torch.tensor([BACKGROUNDS[s.background] for s in scenes], device=device)[:, :, None, None]
    canvas = (canvas / 255).expand(-1, -1, SIZE, SIZE).clone()
    pixels = torch.arange(SIZE, device=device) + 0.5
    for slot in range(max(len(scene.things) for scene in scenes)):
        rows = [b for b, scene in enumerate(scenes) if len(scene.things) > slot]
        things = [scenes[b].things[slot] for b in rows]
        box = torch.tensor([(thing.x, thing.y, thing.radius) for thing in things], device=device)
        x = (pixels[None, None, :] - box[:, 0, None, None]) / box[:, 2, None, None]
        y = (pixels[None, :, None] - box[:, 1, None, None]) / box[:, 2, None, None]
        every_shape = signed_distances(*torch.broadcast_tensors(x, y))
        kind = torch.tensor([SHAPES.index(thing.shape) for thing in things], device=device)
        distance = every_shape[kind, torch.arange(len(rows), device=device)] * box[:, 2, None, None]
        cover = (0.5 - distance).clamp(0, 1)[:, None]
        colour = torch.tensor([COLOURS[thing.colour] for thing in things], device=device)[:, :, None, None] / 255
        canvas[rows] = canvas[rows] * (1 - cover) + colour * cover
    return canvas
