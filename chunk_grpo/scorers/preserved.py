"""How much of the edited picture is left, without a model: it shows edits that change more than was asked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from chunk_grpo.config.scorers import PreservedScorer
from chunk_grpo.scorers.base import FloatArray, Pictures, ScoreBatch, Scores, sources_of
from chunk_grpo.scorers.running.configured import ConfiguredScorer

SIGMA = 1.5
"""Deviation of SSIM's Gaussian window, in pixels. Source: Wang et al. 2004, Sec. III-C."""
WIDEST = 5
"""Pixels on each side of the middle that the window has: it is 11 x 11. Source: the same."""
STEADY = (0.01 * 255) ** 2, (0.03 * 255) ** 2
"""C1 and C2 of Eq. (13), with K1 = 0.01 and K2 = 0.03. Source: the same."""


class Preserved(ConfiguredScorer[PreservedScorer]):
    """Likeness of an image and the picture that it edits; with `box_field` outside the edit's box."""

    version = 1
    needs = frozenset({"metadata", "sources"})

    @property
    def name(self) -> str:
        """Kind and measure."""
        return f"{self.settings.kind}/{self.settings.measure}"

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Mean over the pixels that count: 1 less the difference, in [0, 1], or SSIM, in [-1, 1]."""
        boxes = self.parsed(batch, self.settings.box)
        alike = unmoved if self.settings.measure == "pixels" else structural_similarity
        values = []
        for image, source, box in zip(batch.images, sources_of(self.key, batch), boxes, strict=True):
            values.append(alike(image, source)[_counted(image, box)].mean())
        return Scores(np.array(values))


def unmoved(image: Pictures, source: Pictures) -> FloatArray:
    """1 less the absolute difference of two pictures [H, W, 3] at each pixel, mean of the colours: [H, W] in [0, 1]."""
    moved: FloatArray = np.abs(image.astype(float) - source.astype(float)).mean(axis=-1) / 255
    return 1 - moved


def structural_similarity(image: Pictures, source: Pictures) -> FloatArray:
    """SSIM of two pictures [H, W, 3] at each pixel, mean of the colours: [H, W] in [-1, 1].

    Source: Wang, Bovik, Sheikh and Simoncelli 2004 (doi:10.1109/TIP.2003.819861), Eq. (13) to (16). Pictures are
    mirrored at their edges.
    """
    x, y = image.astype(float), source.astype(float)
    mean_x, mean_y = _windowed(x), _windowed(y)
    var_x, var_y = _windowed(x * x) - mean_x**2, _windowed(y * y) - mean_y**2
    both = _windowed(x * y) - mean_x * mean_y
    of_means = (2 * mean_x * mean_y + STEADY[0]) / (mean_x**2 + mean_y**2 + STEADY[0])
    of_structure = (2 * both + STEADY[1]) / (var_x + var_y + STEADY[1])
    found: FloatArray = (of_means * of_structure).mean(axis=-1)
    return found


def _windowed(values: FloatArray) -> FloatArray:
    """Means [H, W, 3] by a Gaussian window around each pixel."""
    found: FloatArray = gaussian_filter(values, sigma=(SIGMA, SIGMA, 0), radius=(WIDEST, WIDEST, 0))
    return found


def _counted(image: Pictures, box: tuple[float, float, float, float] | None) -> NDArray[np.bool_]:
    """Pixels [H, W] whose middle is outside the box."""
    height, width = image.shape[:2]
    if box is None:
        return np.ones((height, width), dtype=bool)
    left, top, right, bottom = box
    across, down = (np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height
    inside: NDArray[np.bool_] = ((top < down) & (down < bottom))[:, None] & ((left < across) & (across < right))[None]
    return ~inside
