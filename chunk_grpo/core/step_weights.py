"""Weights of the steps in a step-level objective, with mean 1, so that the objective keeps its size."""

import torch
from torch import Tensor

from chunk_grpo.core.assignment import ChunkAssignment
from chunk_grpo.core.chunking import ChunkPlan, spread_to_steps


def noise_weights(transition_stds: Tensor) -> Tensor:
    """Weight of each step in proportion to the noise it draws.

    TempFlow-GRPO: Eq. (8), its Norm(sigma_t * sqrt(dt)), where Norm is the division by the mean over the
    trained steps (arXiv 2508.04324, section 5). The scale eta of the noise cancels.

    Args:
        transition_stds: Standard deviation of each trained step, [N], positive: `sde.transition_std`, which is
            the paper's sigma_t times the root of the step.

    Returns:
        float64 [N], positive, mean 1.

    Raises:
        ValueError: A standard deviation is not positive and finite, or the shape is not [N].
    """
    valid = torch.isfinite(transition_stds) & (transition_stds > 0)
    if transition_stds.ndim != 1 or len(transition_stds) == 0 or not bool(valid.all()):
        raise ValueError(
            f"transition_stds must be [N] positive numbers, one a trained step, got {transition_stds.tolist()}"
        )
    stds = transition_stds.to(torch.float64)
    return stds / stds.mean()


def chunk_size_weights(plan: ChunkPlan) -> Tensor:
    """Weight of each step that a chunk plan implies: N / (K * cs_j), large in small chunks.

    The control of Chunk-GRPO: with these weights the step-level objective has, while all ratios are 1, the very
    gradient of the chunk-level objective of Eq. (13), in which each step counts 1 / (K * cs_j) instead of
    1 / N. What the two differ in later is the effect of the chunk ratio alone.

    Args:
        plan: The chunks of the N steps.

    Returns:
        float64 [N], positive, mean 1.
    """
    sizes = torch.tensor(plan.sizes, dtype=torch.float64)
    return spread_to_steps(plan.num_steps / (plan.num_chunks * sizes), plan)


def selected_chunk_size_weights(chunks: ChunkAssignment, selected: Tensor) -> Tensor:
    """`chunk_size_weights` of the chunks that are trained: n / (k * cs_j), k selected chunks holding n steps.

    Args:
        chunks: The chunk of each step of each trajectory.
        selected: bool [B, Kmax], the chunks that are trained, at least one a row.

    Returns:
        float64 [B, N], mean 1 over the steps of each row's selected chunks; 0 at all other steps.
    """
    chosen = selected.to(torch.float64)
    sizes = chunks.sizes.to(chosen)
    num_steps = (chosen * sizes).sum(dim=1, keepdim=True)
    per_chunk = chosen * num_steps / (chosen.sum(dim=1, keepdim=True) * sizes.clamp(min=1))
    return chunks.spread(per_chunk)
