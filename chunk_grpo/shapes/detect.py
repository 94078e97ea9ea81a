"""Detect shapes in an image without a learned model: foreground components, classified by outline and colour."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from chunk_grpo.shapes.render import CROSS_ARM, signed_distances
from chunk_grpo.shapes.scene import BACKGROUNDS, COLOURS, SHAPES

MIN_CONFIDENCE = 0.75
"""Minimum outline overlap (intersection over union) of a detection; a circle and a square of equal area have 0.83."""

MIN_AREA = 16.0
"""Minimum area of a detection in pixels; smaller components are ignored."""

AREAS = np.array([np.pi, 4.0, 2.0, 4 * (2 * CROSS_ARM - CROSS_ARM**2)])
"""Areas of `SHAPES` at unit radius."""

CENTROID_DROPS = np.array([0.0, 0.0, 1 / 3, 0.0])
"""Offset of the centroid below the centre of the box, in radii."""

_FOREGROUND_DISTANCE = 60 / 255
_COLOUR_SCALE = 0.15

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Detection:
    """One shape detected in an image."""

    box: tuple[float, float, float, float]
    """Box of the best-fitting shape: (left, top, right, bottom) in pixels."""
    overlaps: Array
    """Intersection over union with each of `SHAPES` of the same area and centroid, in [0, 1]."""
    colour_likelihoods: Array
    """exp(-(distance / 0.15)^2 / 2) of the median colour to each of `COLOURS`, in (0, 1]."""

    @property
    def shape(self) -> str:
        """Shape with the largest overlap."""
        return SHAPES[int(self.overlaps.argmax())]

    @property
    def colour(self) -> str:
        """Nearest colour."""
        return list(COLOURS)[int(self.colour_likelihoods.argmax())]

    @property
    def confidence(self) -> float:
        """Largest overlap, in [0, 1]."""
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


def background_of(image: NDArray[np.floating]) -> str:
    """Name of the background that is nearest to the median of the border of an image [3, H, W] in [0, 1]."""
    border = np.concatenate([image[:, 0], image[:, -1], image[:, :, 0], image[:, :, -1]], axis=1)
    away = np.linalg.norm(_palettes()[0] - np.median(border, axis=1), axis=1)
    return list(BACKGROUNDS)[int(away.argmin())]


def _templates(centroid: Array, area: float, size: tuple[int, int]) -> tuple[Array, Array]:
    """Coverage in [0, 1], [len(SHAPES), *size], and (x, y, radius), [len(SHAPES), 3], of each shape of an area."""
    radii = np.sqrt(area / AREAS)
    centres = np.stack([np.full(len(SHAPES), centroid[0]), centroid[1] - CENTROID_DROPS * radii], axis=1)
    x, y, r = (torch.from_numpy(v)[:, None, None] for v in (centres[:, 0], centres[:, 1], radii))
    columns, rows = torch.arange(size[1]) + 0.5, torch.arange(size[0]) + 0.5
    every = signed_distances(*torch.broadcast_tensors((columns[None, None] - x) / r, (rows[None, :, None] - y) / r))
    own = torch.arange(len(SHAPES))
    cover = (0.5 - every[own, own] * r).clamp(0, 1).numpy()
    return cover, np.column_stack([centres, radii])


def detect(image: NDArray[np.floating]) -> list[Detection]:
    """Detect all components of an image [3, H, W] in [0, 1] of at least MIN_AREA, of any confidence, left to right."""
    pixels = np.asarray(image, dtype=np.float64)
    backgrounds, colours = _palettes()
    background = backgrounds[list(BACKGROUNDS).index(background_of(pixels))]
    distance = np.linalg.norm(pixels - background[:, None, None], axis=0)
    labels, count = ndimage.label(distance > _FOREGROUND_DISTANCE, structure=np.ones((3, 3)))
    found = [_judge(pixels, distance, labels == index, colours) for index in range(1, count + 1)]
    return sorted(filter(None, found), key=lambda detection: detection.box)


def _judge(pixels: Array, distance: Array, member: NDArray[np.bool_], colours: Array) -> Detection | None:
    """Measure one component; None below MIN_AREA."""
    inside = member & (distance >= 0.8 * np.percentile(distance[member], 75))
    colour = np.median(pixels[:, inside], axis=1)
    typical = np.median(distance[inside])
    # Anti-aliased edges are outside the component, so coverage is measured one pixel around it.
    cover = np.where(ndimage.binary_dilation(member), np.clip(distance / typical, 0, 1), 0)
    area = float(cover.sum())
    if area < MIN_AREA:
        return None
    rows, columns = np.indices(cover.shape) + 0.5
    centroid = np.array([(cover * columns).sum(), (cover * rows).sum()]) / area
    templates, places = _templates(centroid, area, cover.shape)
    overlaps = np.minimum(templates, cover).sum(axis=(1, 2)) / np.maximum(templates, cover).sum(axis=(1, 2))
    x, y, radius = places[overlaps.argmax()]
    away = np.linalg.norm(colours - colour, axis=1)
    likelihoods = np.exp(-0.5 * (away / _COLOUR_SCALE) ** 2)
    box = (float(x - radius), float(y - radius), float(x + radius), float(y + radius))
    return Detection(box, overlaps, likelihoods)
