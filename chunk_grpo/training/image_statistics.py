"""Image statistics that reveal reward hacking: they drift while the reward rises.

They do not depend on prompt or reward. An image is RGB float64 [3, H, W] in [0, 1], as a family decodes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.float32]
FloatArray = NDArray[np.float64]

LUMA_WEIGHTS = (0.2126, 0.7152, 0.0722)
"""Weights of red, green and blue in luma: Recommendation ITU-R BT.709-6 (2015), item 3.2, on gamma-encoded values."""

COLOUR_LEVELS = 4
"""Levels of a channel in `colour_entropy`: 4 ** 3 = 64 colours, an entropy of 6 bits at most."""


def saturation(image: FloatArray) -> float:
    """Mean saturation of the pixels: HSV's (max - min) / max over the channels, and 0 for black.

    In [0, 1]: 0 for greys, 1 for pure colours.
    """
    high, low = image.max(axis=0), image.min(axis=0)
    return float(np.divide(high - low, high, out=np.zeros_like(high), where=high > 0).mean())


def edge_density(image: FloatArray) -> float:
    """Mean length of the luma gradient, for H and W of at least 2.

    The gradient is the pair of forward differences, to the right and down, at all pixels that have both neighbours.
    In [0, sqrt(2)]: 0 for a plain image, sqrt(2) for a checkerboard of black and white pixels.
    """
    luma = np.tensordot(LUMA_WEIGHTS, image, axes=1)
    right, down = np.diff(luma, axis=1)[:-1, :], np.diff(luma, axis=0)[:, :-1]
    return float(np.hypot(right, down).mean())


def colour_entropy(image: FloatArray) -> float:
    """Shannon entropy of the colours, each channel quantised to 4 levels of equal width.

    In bits, in [0, 6]: 0 for one colour, 6 for all 64 colours equally often.
    """
    levels = np.minimum((image * COLOUR_LEVELS).astype(np.int64), COLOUR_LEVELS - 1)  # 1.0 belongs to the last level
    red, green, blue = levels.reshape(3, -1)
    counts = np.bincount((red * COLOUR_LEVELS + green) * COLOUR_LEVELS + blue)
    shares = counts[counts > 0] / counts.sum()
    return float(np.sum(shares * np.log2(1 / shares)))


def diversity(group: FloatArray) -> float:
    """Root mean square difference of two images of a prompt [G, 3, H, W], mean over all pairs.

    In [0, 1]: 0 if all images are equal. G is at least 2.
    """
    return float(np.mean([np.sqrt(np.mean((a - b) ** 2)) for a, b in combinations(group, 2)]))


STATISTICS: Mapping[str, Callable[[FloatArray], float]] = {
    "saturation": saturation,
    "edge_density": edge_density,
    "colour_entropy": colour_entropy,
}


def image_statistics(images: Images, group_size: int) -> dict[str, float]:
    """Mean of each statistic over all images, and of the diversity over all groups, unless G is 1.

    Args:
        images: [B, 3, H, W] in [0, 1], row = prompt * G + image, H and W at least 2.
        group_size: G, at least 1; it divides B.

    Raises:
        ValueError: A value outside [0, 1].
    """
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):  # NaN fails both comparisons
        raise ValueError(f"images: values must lie in [0, 1], got {low} to {high}")
    # One image at a time is converted, to save memory.
    means = {
        name: float(np.mean([statistic(image.astype(np.float64)) for image in images]))
        for name, statistic in STATISTICS.items()
    }
    if group_size > 1:
        groups = images.reshape(-1, group_size, *images.shape[1:])
        means["diversity"] = float(np.mean([diversity(group.astype(np.float64)) for group in groups]))
    return means
