"""Adaptive chunks: a plan for one trajectory from its own relative-L1 curve."""

import math
from collections.abc import Sequence
from itertools import groupby, pairwise

from chunk_grpo.core.chunking import ChunkPlan

FLAT = 1e-9
"""Largest difference that counts as zero, as a share of the profile's largest magnitude; covers float64 rounding."""


def adaptive_plan(profile: Sequence[float], max_size: int) -> ChunkPlan:
    """Chunks within which a trajectory's relative-L1 curve keeps one direction, refined until they are small.

    The default chunking of arXiv 2510.21583 v3, of which no code is released: first-order derivatives of one
    trajectory's curve, consecutive steps of the same sign form a chunk, a chunk whose signs all agree is split
    at its midpoint, and each chunk is split again by the next order. Our rules where the paper is silent:

    - Small: a run of at most max_size steps is never split, the whole trajectory included. So max_size = N is
      `single_plan` and max_size = 1 is `step_plan`.
    - Derivative: the forward difference of order k (1 for the trajectory, one more at each level) of the run's
      own values; nothing outside the run enters.
    - Which step a sign belongs to: the last one that enters the difference. The first k steps of the run have
      none and take the first sign. So the bottom of a V belongs to the falling chunk.
    - Zeros, exact or within rounding (`FLAT`): the sign before; leading zeros take the first sign after them.
    - A run whose signs all agree, or are all zero, or that has too few points for order k: two halves, the later
      one longer by a step if the run is odd.
    - A zigzag makes chunks of one step; nothing merges them.

    Args:
        profile: Relative L1 distance of each trainable step of one trajectory, [N], finite; N at least 1.
        max_size: Largest chunk size, at least 1.

    Returns:
        Plan of N steps with chunks of 1 to max_size. Scaling or shifting the profile does not change it.

    Raises:
        ValueError: The profile is empty or not finite, or max_size is smaller than 1.
    """
    values = [float(value) for value in profile]
    if not values or not all(math.isfinite(value) for value in values):
        raise ValueError(f"profile needs at least one value, all finite, got {values}")
    if max_size < 1:
        raise ValueError(f"max_size must be at least 1, got {max_size}")
    flat = FLAT * max(abs(value) for value in values)
    return ChunkPlan(tuple(_split(values, max_size, 1, flat)))


def _split(values: list[float], max_size: int, order: int, flat: float) -> list[int]:
    """Sizes of the chunks of a run of steps."""
    if len(values) <= max_size:
        return [len(values)]
    sizes: list[int] = []
    start = 0
    for size in _first_cut(_signs(values, order, flat)):
        sizes += _split(values[start : start + size], max_size, order + 1, flat)
        start += size
    return sizes


def _first_cut(signs: list[int]) -> list[int]:
    """Sizes of the runs of equal signs, or of the two halves when there is only one run."""
    runs = [len(list(run)) for _, run in groupby(signs)]
    half = len(signs) // 2
    return runs if len(runs) > 1 else [half, len(signs) - half]


def _signs(values: list[float], order: int, flat: float) -> list[int]:
    """Sign of the derivative at each step, without gaps; all 0 where the derivative is 0 or does not exist."""
    differences = values
    for _ in range(order):
        differences = [after - before for before, after in pairwise(differences)]
    found = [0 if abs(value) <= flat else int(math.copysign(1, value)) for value in differences]
    sign = next((value for value in found if value), 0)
    signs = [sign] * (len(values) - len(found))
    for value in found:
        sign = value or sign
        signs.append(sign)
    return signs
