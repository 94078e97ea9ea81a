"""Find the things in a picture without a learned model: components off the background, judged by outline and colour."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from chunk_grpo.shapes.render import signed_distances
from chunk_grpo.shapes.scene import BACKGROUNDS, COLOURS, SHAPES

MIN_CONFIDENCE = 0.7
"""Least outline overlap (intersection over union) of a detection; a the nearest shape must also win."""

MIN_SIDE = 8
"""Least side of a bounding box in pixels; smaller components are specks."""

_FOREGROUND_DISTANCE = 60 / 255
_COLOUR_SCALE = 0.15

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Detection:
    """One thing found in a picture.

    Attributes:
        box: (left, top, right, bottom) in pixels; right and bottom are exclusive.
        overlaps: Intersection over union with each of `SHAPES` drawn into the box, in [0, 1].
        colour_likelihoods: exp(-(distance / 0.15)^2 / 2) of the median colour to each of `COLOURS`, in (0, 1].
    """

    box: tuple[float, float, float, float]
    overlaps: Array
    colour_likelihoods: Array

    @property
    def shape(self) -> str:
        """The shape of the largest overlap."""
        return SHAPES[int(self.overlaps.argmax())]

    @property
    def colour(self) -> str:
        """The nearest colour."""
        return list(COLOURS)[int(self.colour_likelihoods.argmax())]

    @property
    def confidence(self) -> float:
        """The largest overlap, in [0, 1]."""
        return float(self.overlaps.max())

    @property
    def centre(self) -> tuple[float, float]:
        """Centre of the box."""
        left, top, right, bottom = self.box
        return (left + right) / 2, (top + bottom) / 2

    @property
    def sides(self) -> tuple[float, float]:
        """Width and height of the box."""
        left, top, right, bottom = self.box
        return right - left, bottom - top


@lru_cache(maxsize=1)
def _palettes() -> tuple[Array, Array]:
    return np.array(list(BACKGROUNDS.values())) / 255, np.array(list(COLOURS.values())) / 255


@lru_cache(maxsize=256)
def _templates(width: int, height: int) -> Array:
    """Coverage in [0, 1] of every shape that fills a box of the given sides: [len(SHAPES), height, width]."""
    x = (torch.arange(width) + 0.5) / width * 2 - 1
    y = (torch.arange(height) + 0.5) / height * 2 - 1
    distances = signed_distances(*torch.broadcast_tensors(x[None, :], y[:, None]))
    pixels_per_unit = (width + height) / 4
    return (0.5 - distances * pixels_per_unit).clamp(0, 1).double().numpy()


def detect(image: NDArray[np.floating]) -> list[Detection]:
    """Detections of all components that are large enough, whatever their confidence, from left to right.

    Args:
        image: [3, H, W] in [0, 1].
    """
    pixels = np.asarray(image, dtype=np.float64)
    backgrounds, colours = _palettes()
    border = np.concatenate([pixels[:, 0], pixels[:, -1], pixels[:, :, 0], pixels[:, :, -1]], axis=1)
    middle = np.median(border, axis=1)
    background = backgrounds[np.linalg.norm(backgrounds - middle, axis=1).argmin()]
    distance = np.linalg.norm(pixels - background[:, None, None], axis=0)
    labels, count = ndimage.label(distance > _FOREGROUND_DISTANCE, structure=np.ones((3, 3)))
    found = []
    for index in range(1, count + 1):
        detection = _judge(pixels, distance, labels == index, colours)
        if detection is not None:
            found.append(detection)
    return sorted(found, key=lambda detection: detection.box)


def _judge(
    pixels: Array, distance: Array, member: NDArray[np.bool_], colours: Array
) -> Detection | None:
    """Measure one component, or None for a speck."""
    inside = member & (distance >= 0.8 * np.percentile(distance[member], 75))
    colour = np.median(pixels[:, inside], axis=1)
    typical = np.median(distance[inside])
    cover = np.where(member, np.clip(distance / typical, 0, 1), 0)
    rows, columns = np.flatnonzero((cover > 0.5).any(axis=1)), np.flatnonzero((cover > 0.5).any(axis=0))
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    if right - left < MIN_SIDE or bottom - top < MIN_SIDE:
        return None
    templates = _templates(int(right - left), int(bottom - top))
    cut = cover[top:bottom, left:right]
    # Coverage that lies outside the box (anti-aliased rims) belongs to no template and is not held against it.
    overlaps = np.minimum(templates, cut).sum(axis=(1, 2)) / np.maximum(templates, cut).sum(axis=(1, 2))
    away = np.linalg.norm(colours - colour, axis=1)
    likelihoods = np.exp(-0.5 * (away / _COLOUR_SCALE) ** 2)
    return Detection((float(left), float(top), float(right), float(bottom)), overlaps, likelihoods)
