"""Chunk plans: splits of the trainable steps of a trajectory into consecutive chunks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chunk_grpo.core.choices import MIN_GUIDED_SIZE
from chunk_grpo.core.dynamics import require_profile


@dataclass(frozen=True)
class ChunkPlan:
    """Sizes of the chunks, from noise to image; chunk j holds `sizes[j]` consecutive steps.

    Paper: Eq. (12). The steps are the trainable ones, numbered from 0.
    """

    sizes: tuple[int, ...]
    """The paper's cs_j, [K], each at least 1."""

    def __post_init__(self) -> None:
        """Validate that there is at least one chunk and none is empty."""
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"a chunk plan needs at least one chunk, each of at least 1 step, got {self.sizes}")

    @property
    def num_chunks(self) -> int:
        """Number of chunks K."""
        return len(self.sizes)

    @property
    def num_steps(self) -> int:
        """Number of steps N that the chunks cover."""
        return sum(self.sizes)

    @property
    def first_steps(self) -> tuple[int, ...]:
        """First step of each chunk."""
        return tuple(sum(self.sizes[:chunk]) for chunk in range(self.num_chunks))

    def chunk_of_step(self) -> tuple[int, ...]:
        """Chunk number of each step, [N]."""
        return tuple(chunk for chunk, size in enumerate(self.sizes) for _ in range(size))


def listed_plan(sizes: Sequence[int], num_sde_steps: int) -> ChunkPlan:
    """A plan from a list of sizes, such as the paper's [2, 3, 4, 7] for 17 sampling steps.

    Paper: Eq. (12), its sum taken over the trainable steps: the last sampling step is not trained.

    Args:
        sizes: Chunk sizes from noise to image, each at least 1.
        num_sde_steps: Number of trainable steps N, which is the number of sampling steps minus 1.

    Returns:
        The plan.

    Raises:
        ValueError: The sizes are empty, smaller than 1, or do not sum to num_sde_steps.
    """
    plan = ChunkPlan(tuple(sizes))
    if plan.num_steps != num_sde_steps:
        raise ValueError(
            f"chunk sizes must sum to the number of trainable steps {num_sde_steps} (num_steps - 1), "
            f"got {list(sizes)}, which sum to {plan.num_steps}"
        )
    return plan


def equal_plan(size: int, num_sde_steps: int) -> ChunkPlan:
    """Chunks of one size; the last one is shorter when the size does not divide the number of steps.

    Paper: Eq. (12) with equal cs_j, the settings "w/o td" of Table 3.

    Args:
        size: Chunk size, from 1 to num_sde_steps.
        num_sde_steps: Number of trainable steps N.

    Returns:
        The plan.

    Raises:
        ValueError: The size is out of range.
    """
    if not 1 <= size <= num_sde_steps:
        raise ValueError(f"chunk size must be from 1 to the number of trainable steps {num_sde_steps}, got {size}")
    full, rest = divmod(num_sde_steps, size)
    return ChunkPlan((size,) * full + ((rest,) if rest else ()))


def step_plan(num_sde_steps: int) -> ChunkPlan:
    """One chunk per step: Chunk-GRPO becomes step-level GRPO.

    Paper: Eq. (12) with cs_j = 1.

    Args:
        num_sde_steps: Number of trainable steps N, at least 1.

    Returns:
        The plan with K = N.

    Raises:
        ValueError: num_sde_steps is smaller than 1.
    """
    return ChunkPlan((1,) * num_sde_steps)


def single_plan(num_sde_steps: int) -> ChunkPlan:
    """The whole trajectory as one chunk, as in sequence-level GSPO.

    Paper: Eq. (12) with K = 1.

    Args:
        num_sde_steps: Number of trainable steps N, at least 1.

    Returns:
        The plan with K = 1.

    Raises:
        ValueError: num_sde_steps is smaller than 1.
    """
    return ChunkPlan((num_sde_steps,))


def guided_plan(profile: Sequence[float], num_chunks: int) -> ChunkPlan:
    """Chunks within which the logarithm of the relative-L1 profile is closest to a straight line.

    Paper: Eq. (12) guided by Eq. (15). The paper sets its boundaries by eye (App. B.1); this is the rule we
    put in its place: piecewise least-squares lines, not joined, with the smallest total squared error over
    all splits, found by dynamic programming. Of equally good splits the one with the longer last chunk wins.

    Args:
        profile: Mean relative L1 distance of each trainable step, [N], positive.
        num_chunks: Number of chunks K, from 1 to N / 2.

    Returns:
        The plan; each chunk has at least 2 steps.

    Raises:
        ValueError: A profile value is not positive and finite, or K is out of range.
    """
    values = require_profile("profile", profile)
    num_steps = len(values)
    if not 1 <= num_chunks <= num_steps // MIN_GUIDED_SIZE:
        raise ValueError(
            f"num_chunks must be from 1 to {num_steps // MIN_GUIDED_SIZE} "
            f"(chunks of at least {MIN_GUIDED_SIZE} of {num_steps} steps), got {num_chunks}"
        )
    return ChunkPlan(_best_split([math.log(value) for value in values], num_chunks))


def boundary_shift(plan: ChunkPlan, reference: ChunkPlan) -> float:
    """Distance between the chunk boundaries of two plans, such as a current plan and the base profile's.

    mean over the K - 1 inner boundaries of |first step of a chunk - first step of the reference's chunk|. Ours.

    Args:
        plan: K chunks of N steps.
        reference: Another plan with the same K and N.

    Returns:
        Mean distance in steps, at least 0; 0 for equal plans and for one chunk, which has no inner boundary.

    Raises:
        ValueError: The plans differ in their number of chunks or steps.
    """
    if (plan.num_chunks, plan.num_steps) != (reference.num_chunks, reference.num_steps):
        raise ValueError(
            f"plans to compare must have the same numbers of chunks and steps, got {plan.sizes} and {reference.sizes}"
        )
    inner = list(zip(plan.first_steps[1:], reference.first_steps[1:], strict=True))
    return sum(abs(step - other) for step, other in inner) / max(len(inner), 1)


def chunk_means(values: Tensor, plan: ChunkPlan) -> Tensor:
    """Mean of per-step values over each chunk.

    Paper: the average (1 / cs_j) * sum over t in ch_j of Eq. (14) and Eq. (16).

    Args:
        values: Per-step values [..., N].
        plan: The chunks of the N steps.

    Returns:
        [..., K].

    Raises:
        ValueError: N is not the plan's number of steps.
    """
    if values.shape[-1] != plan.num_steps:
        raise ValueError(f"the chunk plan covers {plan.num_steps} steps, but the values have {values.shape[-1]}")
    return torch.stack([chunk.mean(dim=-1) for chunk in torch.split(values, list(plan.sizes), dim=-1)], dim=-1)


def _best_split(y: list[float], num_chunks: int) -> tuple[int, ...]:
    """Sizes of the split with the smallest sum of `_line_fit_error`, by dynamic programming over prefixes."""
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}  # end of the prefix -> error and sizes
    for _ in range(num_chunks):
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (error, sizes) in best.items():
            for end in range(start + MIN_GUIDED_SIZE, len(y) + 1):
                total = error + _line_fit_error(y[start:end])
                if end not in longer or total < longer[end][0] - 1e-12:
                    longer[end] = (total, (*sizes, end - start))
        best = longer
    return best[len(y)][1]


def _line_fit_error(y: list[float]) -> float:
    """Sum of squared residuals of the least-squares line through (0, y[0]), (1, y[1]), ..."""
    middle, mean = (len(y) - 1) / 2, math.fsum(y) / len(y)
    covariance = math.fsum((x - middle) * (value - mean) for x, value in enumerate(y))
    slope = covariance / math.fsum((x - middle) ** 2 for x in range(len(y)))
    return math.fsum((value - mean - slope * (x - middle)) ** 2 for x, value in enumerate(y))
