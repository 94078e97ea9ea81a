"""Settings of a variant, resolved to values of `chunk_grpo.core`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from chunk_grpo.config import (
    AdaptivePlan,
    BranchingParams,
    GuidedPlan,
    Params,
    PlanParams,
    SamplingParams,
    TrainParams,
    VariantParams,
    WindowParams,
)
from chunk_grpo.core.choices import (
    AdvantageStd,
    Combine,
    Likelihood,
    Objective,
    RatioNorm,
    Selection,
    StepWeights,
    TrustRegion,
)
from chunk_grpo.core.chunking import ChunkPlan
from chunk_grpo.core.objective import ClipRange
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
    """Settings of a variant, with all defaults filled in."""

    grid: StepGrid
    """Sampling grid of the rollouts."""
    window: WindowParams | None
    """Sliding window of noisy steps; None: all steps but the last are noisy."""
    branching: BranchingParams | None
    """Branches in place of whole noisy trajectories, or None."""
    plan: ChunkPlan
    """Chunk plan at the start. With an adaptive plan: the plan of the mean profile, which is not trained."""
    chunk_weights: Tensor
    """Eq. (16) weights [K] of the chunks of `plan`."""
    adaptive_size: int | None
    """Largest chunk of an adaptive plan; None: one plan for all trajectories."""
    guided_chunks: int | None
    """Number of chunks of a guided plan; None: another kind of plan."""
    replan_every: int | None
    """Interval in iterations at which a guided plan is recomputed; None: never."""
    selection: Selection
    """Rule by which chunks are drawn."""
    selection_exponent: float
    """Exponent of the weights of that rule, in (0, 1]."""
    fraction: float
    """Share of the chunks drawn for each trajectory and update, in (0, 1]."""
    train_chunks: tuple[int, ...] | None
    """Chunks that may be drawn; None: all."""
    objective: Objective
    """Level of the importance ratio."""
    step_weights: StepWeights
    """Weights of the step objective's terms."""
    clip_range: ClipRange
    """Half width of the ratio's trust region: one, or a tensor [K]."""
    kl_coef: float
    """Weight of the KL divergence to the reference policy, at least 0."""
    ratio_norm: RatioNorm
    """Normalisation of the log-ratio."""
    trust_region: TrustRegion
    """Whether ratios are clipped, or divergences limited."""
    likelihood: Likelihood
    """What stands for log p of a step."""
    nft_beta: float
    """Mixture of DiffusionNFT's velocities, above 0."""
    controlled: bool
    """Whether the controller of the held-out scores acts on the training."""
    advantage_std: AdvantageStd
    """Kind of standard deviation that divides the rewards."""
    advantage_clip: float
    """Bound on the absolute advantage."""
    combine: Combine
    """Whether rewards or advantages of several scorers are summed."""
    chunk_rewards: tuple[Mapping[str, float], ...] | None
    """For each chunk the weight of each scorer; None: one reward for all chunks."""


def method_from(
    params: Params, variant: str, plan: ChunkPlan, chunk_weights: Tensor, times: Tensor
) -> Method:
    """Resolve the settings of a variant.

    Args:
        params: Content of params.yaml.
        variant: Name of the variant.
        plan: Chunk plan of the variant, from the stage `chunk_boundaries`.
        chunk_weights: Eq. (16) weights [K] of the plan's chunks.
        times: Noise levels [S + 1] of `sampling`.
    """
    own = params.variants[variant]
    planned = params.chunks.plans[own.plan]
    return resolved(own, planned, params.sampling, params.train, plan, chunk_weights, times)


def resolved(
    own: VariantParams,
    planned: PlanParams,
    sampling: SamplingParams,
    train: TrainParams,
    plan: ChunkPlan,
    chunk_weights: Tensor,
    times: Tensor,
) -> Method:
    """Settings of a variant, with those of `sampling` and `train` where it has none.

    Args:
        own: The variant.
        planned: Settings of its plan.
        sampling: Sampler of the rollouts.
        train: Training settings.
        plan: Chunk plan at the start.
        chunk_weights: Eq. (16) weights [K] of the plan's chunks.
        times: Noise levels [S + 1] of `sampling`.
    """
    eta = sampling.eta if own.eta is None else own.eta
    single = train.clip_range if own.clip_range is None else own.clip_range
    return Method(
        grid=StepGrid(times, *step_noise(own.sde or sampling.sde, times, eta)),
        window=own.window,
        branching=own.branching,
        plan=plan,
        chunk_weights=chunk_weights,
        adaptive_size=planned.max_size if isinstance(planned, AdaptivePlan) else None,
        guided_chunks=planned.num_chunks if isinstance(planned, GuidedPlan) else None,
        replan_every=own.replan_every,
        selection=own.selection,
        selection_exponent=own.selection_exponent,
        fraction=train.fraction if own.fraction is None else own.fraction,
        train_chunks=own.train_chunks,
        objective=own.objective,
        step_weights=own.step_weights,
        clip_range=single if own.clip_ranges is None else torch.tensor(own.clip_ranges, dtype=torch.float64),
        kl_coef=train.kl_coef if own.kl_coef is None else own.kl_coef,
        ratio_norm=own.ratio_norm,
        trust_region=own.trust_region,
        likelihood=own.likelihood,
        nft_beta=own.nft_beta,
        controlled=own.controlled,
        advantage_std=own.advantage_std,
        advantage_clip=train.advantage_clip,
        combine=own.combine,
        chunk_rewards=own.chunk_rewards,
    )
