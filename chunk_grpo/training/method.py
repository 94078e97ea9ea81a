"""A variant as it is trained: its settings, the sampling grid and the chunk plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chunk_grpo.config import (
    AdaptivePlan,
    GuidedPlan,
    Params,
    PlanParams,
    ResolvedVariant,
    SamplingParams,
    TrainParams,
    VariantParams,
    resolve,
)
from chunk_grpo.core.chunking import ChunkPlan
from chunk_grpo.core.objective import Bounds
from chunk_grpo.core.sde import SDE, Sampler, step_noise


@dataclass(frozen=True)
class StepGrid:
    """The sampling grid of the rollouts."""

    times: Tensor
    """Time grid, float64 [S + 1]."""
    noise: Tensor
    """Noise strength of each noisy step [S - 1], in the unit of `sampler`."""
    sampler: Sampler = SDE
    """Sampler of the noisy steps."""

    @property
    def num_sde_steps(self) -> int:
        """Number of steps that may carry noise, N = S - 1."""
        return len(self.noise)

    def widths(self) -> Tensor:
        """Width t - t_next of each noisy step, float64 [S - 1]."""
        return self.times[:-2] - self.times[1:-1]

    def transition_stds(self) -> Tensor:
        """Standard deviation of each noisy step, float64 [S - 1]."""
        return self.sampler.std(self.times[:-2], self.times[1:-1], self.noise)


@dataclass(frozen=True)
class Method:
    """What a training does, besides the settings of `train`."""

    variant: ResolvedVariant
    """Settings of the variant."""
    grid: StepGrid
    """Sampling grid of the rollouts."""
    plan: ChunkPlan
    """Chunk plan at the start. With an adaptive plan: the plan of the mean profile, which is not trained."""
    chunk_weights: Tensor
    """Eq. (16) weights [K] of the chunks of `plan`."""
    advantage_clip: float
    """Bound on the absolute advantage."""
    adaptive_size: int | None = None
    """Largest chunk of an adaptive plan; None: one plan for all trajectories."""
    guided_chunks: int | None = None
    """Number of chunks of a guided plan; None: another kind of plan."""

    @property
    def predicted_steps(self) -> tuple[int, ...] | None:
        """Steps before which rollouts predict the image, the first of each chunk; None: the credit needs none."""
        return self.plan.first_steps if self.variant.credit == "chunk-gains" else None

    @property
    def bounds(self) -> Bounds:
        """Bounds of an update, before a controller changes them."""
        limits = self.variant.limits
        own = self.variant.clip_ranges is not None
        clip_range = torch.tensor(limits, dtype=torch.float64) if own else limits[0]
        return Bounds(clip_range, self.variant.kl_coef, self.variant.trust_region)


def method_from(params: Params, variant: str, plan: ChunkPlan, chunk_weights: Tensor, times: Tensor) -> Method:
    """The method of a variant of params.yaml.

    Args:
        params: Content of params.yaml.
        variant: Name of the variant.
        plan: Chunk plan of the variant, from the stage `chunk_boundaries`.
        chunk_weights: Eq. (16) weights [K] of the plan's chunks.
        times: Noise levels [S + 1] of `sampling`.
    """
    own = params.variants[variant]
    planned = params.chunks.plans[own.plan]
    return make_method(own, planned, params.sampling, params.train, plan, chunk_weights, times)


def make_method(
    own: VariantParams,
    planned: PlanParams,
    sampling: SamplingParams,
    train: TrainParams,
    plan: ChunkPlan,
    chunk_weights: Tensor,
    times: Tensor,
) -> Method:
    """The method of a variant.

    Args:
        own: The variant.
        planned: Settings of its plan.
        sampling: Sampler of the rollouts.
        train: Training settings.
        plan: Chunk plan at the start.
        chunk_weights: Eq. (16) weights [K] of the plan's chunks.
        times: Noise levels [S + 1] of `sampling`.
    """
    variant = resolve(own, sampling, train)
    return Method(
        variant=variant,
        grid=StepGrid(times, *step_noise(variant.sde, times, variant.eta)),
        plan=plan,
        chunk_weights=chunk_weights,
        advantage_clip=train.advantage_clip,
        adaptive_size=planned.max_size if isinstance(planned, AdaptivePlan) else None,
        guided_chunks=planned.num_chunks if isinstance(planned, GuidedPlan) else None,
    )
