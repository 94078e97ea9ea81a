"""Which chunks of a trajectory an update trains."""

from collections.abc import Sequence

import torch
from torch import Tensor

from chunk_grpo.core.chunking import ChunkPlan, chunk_means


def chunk_weights(profile: Sequence[float], plan: ChunkPlan) -> Tensor:
    """Sampling weight of each chunk: its mean relative L1 distance over that of the whole trajectory.

    Paper: Eq. (16). The profile must come from SDE rollouts: under the ODE the curve rises and inverts the
    weights (docs/deviations.md).

    Args:
        profile: Mean relative L1 distance of each trainable step, [N], positive.
        plan: The chunks of the N steps.

    Returns:
        float64 [K], positive; their mean weighted by chunk size is 1.

    Raises:
        ValueError: A profile value is not positive and finite, or N is not the plan's number of steps.
    """
    values = torch.tensor([float(value) for value in profile], dtype=torch.float64)
    if not bool((torch.isfinite(values) & (values > 0)).all()):
        raise ValueError(f"profile values must be positive and finite, got {values.tolist()}")
    return chunk_means(values, plan) / values.mean()


def num_selected(num_chunks: int, fraction: float) -> int:
    """Number of chunks that an update trains of each trajectory: int(K * fraction), rounded down as released.

    Paper: Eq. (16) and the fraction named above it; Table 6 sets 0.5.

    Args:
        num_chunks: Number of chunks K, at least 1.
        fraction: Fraction of chunks to train, in (0, 1].

    Returns:
        A number from 1 to K.

    Raises:
        ValueError: The fraction is out of range or leaves no chunk.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction}")
    count = int(num_chunks * fraction)
    if count < 1:
        raise ValueError(
            f"fraction must leave at least one chunk: int({num_chunks} chunks * {fraction}) = 0; "
            f"use at least {1 / num_chunks:.4g}"
        )
    return count


def select_chunks(
    plan: ChunkPlan,
    fraction: float,
    weights: Tensor | None,
    batch: int,
    generator: torch.Generator,
) -> Tensor:
    """Draw the chunks to train, for each trajectory on its own, without replacement.

    Paper: Eq. (16), used as the released code does: drawn one after the other from what is left, without
    correction, so that a chunk's chance to be drawn is not proportional to its weight (docs/deviations.md).

    Args:
        plan: The chunks.
        fraction: Fraction of chunks to train, in (0, 1].
        weights: Sampling weights [K] of `chunk_weights`, positive; None draws uniformly.
        batch: Number of trajectories B, at least 1.
        generator: Source of randomness; the result lies on its device.

    Returns:
        bool [B, K], int(K * fraction) true in each row.

    Raises:
        ValueError: A weight is not positive, the number of weights is not K, or the fraction is out of range.
    """
    count = num_selected(plan.num_chunks, fraction)
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    if weights is None:
        weights = torch.ones(plan.num_chunks, dtype=torch.float64)
    if weights.shape != (plan.num_chunks,) or not bool((torch.isfinite(weights) & (weights > 0)).all()):
        raise ValueError(f"weights must be {plan.num_chunks} positive numbers, got {weights.tolist()}")
    rows = weights.to(generator.device).expand(batch, -1)
    chosen = torch.multinomial(rows, count, replacement=False, generator=generator)
    return torch.zeros(rows.shape, dtype=torch.bool, device=generator.device).scatter_(1, chosen, True)
