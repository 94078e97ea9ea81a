"""A variant as the trainer needs it: its settings, and what follows from them in values of the core."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chunk_grpo.config import AdaptivePlan, GuidedPlan, Params, VariantParams
from chunk_grpo.core.chunking import ChunkPlan
from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.objective import ClipRange
from chunk_grpo.core.sde import CPS, SDE, Sampler, diffusion_coefs


@dataclass(frozen=True)
class StepGrid:
    """The sampling grid of the rollouts.

    Attributes:
        times: [S + 1].
        noise: [S - 1], the strength of each noisy step's noise as `sampler` takes it.
        sampler: How a noisy step is drawn.
    """

    times: Tensor
    noise: Tensor
    sampler: Sampler = SDE

    @property
    def num_sde_steps(self) -> int:
        """The steps that may carry noise, N = S - 1."""
        return len(self.noise)

    def transition_stds(self) -> Tensor:
        """Standard deviation of each noisy step, float64 [S - 1]."""
        return self.sampler.std(self.times[:-2], self.times[1:-1], self.noise)


@dataclass(frozen=True)
class Method:
    """What makes one variant differ from another.

    Attributes:
        settings: The variant's own section of params.yaml.
        grid: The sampling grid of its rollouts.
        plan: Its chunks at the start; with an adaptive plan those of the mean profile, which are not trained.
        chunk_weights: Eq. (16) weights [K] of these chunks.
        adaptive_size: Largest chunk of an adaptive plan, or None for one plan for all trajectories.
        guided_chunks: Number of chunks of a guided plan, or None for another kind.
        fraction: Share of the chunks that is drawn for each sample and update.
        clip_range: Half width of the ratio's trust region: one, or a tensor [K].
        kl_coef: Weight of the KL divergence to the reference policy, at least 0.
        advantage_clip: Bound on the absolute advantage.
    """

    settings: VariantParams
    grid: StepGrid
    plan: ChunkPlan
    chunk_weights: Tensor
    adaptive_size: int | None
    guided_chunks: int | None
    fraction: float
    clip_range: ClipRange
    kl_coef: float
    advantage_clip: float


def method_from(params: Params, variant: str, plan: ChunkPlan, chunk_weights: Tensor) -> Method:
    """The method of `variant`, whose chunk plan and Eq. (16) weights [K] an earlier stage has made."""
    settings = params.variants[variant]
    planned = params.chunks.plans[settings.plan]
    ranges = settings.clip_ranges
    single = params.train.clip_range if settings.clip_range is None else settings.clip_range
    return Method(
        settings=settings,
        grid=_grid(params, variant),
        plan=plan,
        chunk_weights=chunk_weights,
        adaptive_size=planned.max_size if isinstance(planned, AdaptivePlan) else None,
        guided_chunks=planned.num_chunks if isinstance(planned, GuidedPlan) else None,
        fraction=params.variant_fraction(variant),
        clip_range=single if ranges is None else torch.tensor(ranges, dtype=torch.float64),
        kl_coef=params.variant_kl_coef(variant),
        advantage_clip=params.train.advantage_clip,
    )


def _grid(params: Params, variant: str) -> StepGrid:
    kind, eta = params.variant_noise(variant)
    times = time_grid(params.sampling.num_steps, params.sampling.shift)
    if kind == "cps":
        return StepGrid(times, torch.full((len(times) - 2,), eta, dtype=torch.float64), CPS)
    return StepGrid(times, diffusion_coefs(times, kind, eta), SDE)
