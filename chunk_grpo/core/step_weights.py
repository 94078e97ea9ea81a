"""Weights of the steps in a step-level objective. Their mean is 1, which preserves the objective's scale."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from chunk_grpo.core.assignment import ChunkAssignment
from chunk_grpo.core.choices import STEP_WEIGHTS, StepWeights, implemented


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
            f"transition_stds must be [N] positive numbers, one per trained step, got {transition_stds.tolist()}"
        )
    stds = transition_stds.to(torch.float64)
    return stds / stds.mean()


def interval_weights(widths: Tensor) -> Tensor:
    """Weight of each step in inverse proportion to its width.

    GRPO-Guard's factor 1 / dt on each step's term (arXiv 2510.22319), divided by its mean over the steps.

    Args:
        widths: Width t - t_next of each trained step, [N], positive.

    Returns:
        float64 [N], positive, mean 1.

    Raises:
        ValueError: A width is not positive and finite, or the shape is not [N].
    """
    valid = torch.isfinite(widths) & (widths > 0)
    if widths.ndim != 1 or len(widths) == 0 or not bool(valid.all()):
        raise ValueError(f"widths must be [N] positive numbers, one per trained step, got {widths.tolist()}")
    inverse = 1 / widths.to(torch.float64)
    return inverse / inverse.mean()


def chunk_size_weights(chunks: ChunkAssignment, selected: Tensor) -> Tensor:
    """Weight of each step of the selected chunks: n / (k * cs_j), k selected chunks holding n steps.

    The control of Chunk-GRPO: with these weights the step-level objective has, while all ratios are 1, the same
    gradient as the chunk-level objective of Eq. (13), in which each step counts 1 / (k * cs_j) instead of 1 / n.
    Any later difference between the two is the effect of the chunk ratio alone.

    Args:
        chunks: The chunk of each step of each trajectory.
        selected: bool [B, Kmax], the trained chunks, at least one per row.

    Returns:
        float64 [B, N], mean 1 over the steps of each row's selected chunks; 0 at all other steps.
    """
    chosen = selected.to(torch.float64)  # [B, Kmax]
    sizes = chunks.sizes.to(chosen)  # [B, Kmax]
    num_steps = (chosen * sizes).sum(dim=1, keepdim=True)  # [B, 1]
    per_chunk = chosen * num_steps / (chosen.sum(dim=1, keepdim=True) * sizes.clamp(min=1))  # [B, Kmax]
    return chunks.to_steps(per_chunk)


@dataclass(frozen=True)
class StepWeightRule:
    """Weights of the steps."""

    weights: Callable[[ChunkAssignment, Tensor, Tensor, Tensor], Tensor | None]
    """(drawn chunks, selected [B, Kmax], standard deviations [N], widths [N]) -> weights [B, N], or None for 1."""
    weighs_kl: bool
    """Whether they multiply the KL divergence too, or the clipped term alone."""


STEP_WEIGHT_RULES: Mapping[StepWeights, StepWeightRule] = implemented(
    STEP_WEIGHTS,
    "core/step_weights.py",
    {
        "uniform": StepWeightRule(lambda chunks, selected, stds, widths: None, weighs_kl=False),
        # TempFlow-GRPO, Eq. (8): the weight stands before the clipped term.
        "noise": StepWeightRule(
            lambda chunks, selected, stds, widths: noise_weights(stds).expand(len(selected), -1), weighs_kl=False
        ),
        "interval": StepWeightRule(
            lambda chunks, selected, stds, widths: interval_weights(widths).expand(len(selected), -1), weighs_kl=False
        ),
        # Eq. (13): the mean over a chunk's steps is that of the divergence too.
        "chunk-size": StepWeightRule(
            lambda chunks, selected, stds, widths: chunk_size_weights(chunks, selected), weighs_kl=True
        ),
    },
)
"""Rules by choice."""
