"""Image statistics that reveal reward hacking: they drift while the reward rises.

They do not depend on prompt or reward. Images are RGB [B, 3, H, W] in [0, 1], as a family decodes them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.float32]
FloatArray = NDArray[np.float64]

LUMA_WEIGHTS = (0.2126, 0.7152, 0.0722)
"""Weights of red, green and blue in luma: Recommendation ITU-R BT.709-6 (2015), item 3.2, on gamma-encoded values."""

COLOUR_LEVELS = 4
"""Levels of a channel in `colour_entropy`: 4 ** 3 = 64 colours, an entropy of 6 bits at most."""


def saturation(images: Images) -> FloatArray:
    """Mean saturation of an image's pixels.

    A pixel's saturation is defined as in HSV: (max - min) / max over its channels, and 0 for black.

    Args:
        images: [B, 3, H, W] in [0, 1].

    Returns:
        [B] in [0, 1]: 0 for greys, 1 for pure colours.

    Raises:
        ValueError: Wrong shape, or values outside [0, 1].
    """
    return _each(_saturation, _checked(images))


def edge_density(images: Images) -> FloatArray:
    """Mean length of an image's luma gradient.

    The gradient is the pair of forward differences, to the right and down, at all pixels that have both neighbours.

    Args:
        images: [B, 3, H, W] in [0, 1], H and W at least 2.

    Returns:
        [B] in [0, sqrt(2)]: 0 for a plain image, sqrt(2) for a checkerboard of black and white pixels.

    Raises:
        ValueError: Wrong shape, or values outside [0, 1].
    """
    checked = _checked(images)
    if min(checked.shape[2:]) < 2:
        raise ValueError(f"images: edges need height and width of at least 2, got shape {checked.shape}")
    return _each(_edge_density, checked)


def colour_entropy(images: Images) -> FloatArray:
    """Shannon entropy of an image's colours, each channel quantised to 4 levels of equal width.

    Args:
        images: [B, 3, H, W] in [0, 1].

    Returns:
        [B] in bits, in [0, 6]: 0 for one colour, 6 for all 64 colours equally often.

    Raises:
        ValueError: Wrong shape, or values outside [0, 1].
    """
    return _each(_colour_entropy, _checked(images))


def group_diversity(images: Images, group_size: int) -> FloatArray:
    """Diversity of the images of a prompt: root mean square difference of two images, mean over all pairs.

    Args:
        images: [B, 3, H, W] in [0, 1], row = prompt * G + image.
        group_size: G, at least 2; it divides B.

    Returns:
        [P] in [0, 1]: 0 if all images of a group are equal.

    Raises:
        ValueError: Wrong shape, values outside [0, 1], or a group size that does not fit.
    """
    checked = _checked(images)
    if group_size < 2:
        raise ValueError(f"group_size: diversity needs at least 2 images of a prompt, got {group_size}")
    groups = checked.reshape(_group_count(checked, group_size), group_size, *checked.shape[1:])
    return np.array([_diversity(group) for group in groups])


def image_statistics(images: Images, group_size: int) -> dict[str, float]:
    """Mean of each statistic over all images; of the diversity over all groups.

    Args:
        images: [B, 3, H, W] in [0, 1], row = prompt * G + image, H and W at least 2.
        group_size: G, at least 1; it divides B.

    Returns:
        "saturation", "edge_density", "colour_entropy" and, unless G is 1, "diversity".

    Raises:
        ValueError: Wrong shape, values outside [0, 1], or a group size that does not fit.
    """
    _group_count(_checked(images), group_size)
    means = {
        "saturation": float(saturation(images).mean()),
        "edge_density": float(edge_density(images).mean()),
        "colour_entropy": float(colour_entropy(images).mean()),
    }
    if group_size > 1:
        means["diversity"] = float(group_diversity(images, group_size).mean())
    return means


def _checked(images: Images) -> Images:
    if images.ndim != 4 or images.shape[1] != 3 or images.size == 0:
        raise ValueError(f"images: must have shape [B, 3, H, W] and not be empty, got {images.shape}")
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):  # NaN fails both comparisons
        raise ValueError(f"images: values must lie in [0, 1], got {low} to {high}")
    return images


def _group_count(images: Images, group_size: int) -> int:
    """P, the number of groups."""
    if group_size < 1 or len(images) % group_size:
        raise ValueError(f"group_size: must be at least 1 and divide the {len(images)} images, got {group_size}")
    return len(images) // group_size


def _each(statistic: Callable[[FloatArray], float], images: Images) -> FloatArray:
    """One number per image. Converts one image at a time to float64 to save memory."""
    return np.array([statistic(image.astype(np.float64)) for image in images])


def _saturation(image: FloatArray) -> float:
    high, low = image.max(axis=0), image.min(axis=0)
    return float(np.divide(high - low, high, out=np.zeros_like(high), where=high > 0).mean())


def _edge_density(image: FloatArray) -> float:
    luma = np.tensordot(LUMA_WEIGHTS, image, axes=1)
    right, down = np.diff(luma, axis=1)[:-1, :], np.diff(luma, axis=0)[:, :-1]
    return float(np.hypot(right, down).mean())


def _colour_entropy(image: FloatArray) -> float:
    levels = np.minimum((image * COLOUR_LEVELS).astype(np.int64), COLOUR_LEVELS - 1)  # 1.0 belongs to the last level
    red, green, blue = levels.reshape(3, -1)
    counts = np.bincount((red * COLOUR_LEVELS + green) * COLOUR_LEVELS + blue)
    shares = counts[counts > 0] / counts.sum()
    return float(np.sum(shares * np.log2(1 / shares)))


def _diversity(group: Images) -> float:
    """Mean over the pairs of a group [G, 3, H, W]."""
    images = group.astype(np.float64)
    return float(np.mean([np.sqrt(np.mean((a - b) ** 2)) for a, b in combinations(images, 2)]))
