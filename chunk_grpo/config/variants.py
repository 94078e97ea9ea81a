"""The section `variants` of params.yaml: the settings in which the trained policies differ.

Every method is a combination of independent settings. The defaults are those of Chunk-GRPO; a key that `train` or
`sampling` also has defaults to the value there. docs/methods.md lists the methods of the papers.
"""

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from chunk_grpo.config.section import ClipRange, Eta, Fraction, Mix, Section
from chunk_grpo.core.choices import (
    AdvantageStd,
    Combine,
    Likelihood,
    Objective,
    RatioNorm,
    Sde,
    Selection,
    StepWeights,
    TrustRegion,
)


class WindowParams(Section):
    """MixGRPO: noise in a window of consecutive steps that moves from noise to image; ODE steps elsewhere."""

    num_steps: PositiveInt
    """Steps in the window."""
    stride: PositiveInt
    """Steps by which the window moves, at most `num_steps`."""
    every: PositiveInt
    """Iterations between two moves."""


class BranchingParams(Section):
    """TempFlow-GRPO: ODE trajectories with one noisy step each."""

    points: PositiveInt
    """Number of branching steps per iteration, drawn anew in each iteration."""
    children: Annotated[int, Field(ge=2)]
    """Images that branch off one trajectory at one step; they form a group. A prompt has group_size / children
    trajectories, so points * group_size images."""


class VariantParams(Section):
    """Settings of one variant."""

    objective: Objective
    """Level of the importance ratio: `chunk`: one ratio per chunk, Eq. (13); `step`: one ratio per step, Eq. (5), for
    the steps of the selected chunks."""
    plan: str
    """Name in chunks.plans; chunks of this plan are selected for training."""
    selection: Selection = "uniform"
    """Distribution of the selected chunks: `uniform`; `weighted` by Eq. (16), as released; `unbiased`: weighted, with
    importance weights as correction; `annealed`: from weighted to uniform over the run; `trajectory`: weighted by
    each trajectory's own L1 distances."""
    selection_exponent: Fraction = 1.0
    """Exponent of the selection's weights; 1: Eq. (16), near 0: an almost uniform draw."""
    fraction: Fraction | None = None
    """Share of the chunks selected per sample and update; null: train.fraction."""
    train_chunks: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = None
    """Chunks that may be selected, 0 nearest to noise; null: all."""
    replan_every: PositiveInt | None = None
    """Iterations after which a guided plan is recomputed from the current policy; null: never."""
    step_weights: StepWeights = "uniform"
    """Weights of the step objective's terms: `uniform`; `noise` (TempFlow-GRPO); `interval`: the inverse of the
    step's width (GRPO-Guard); `chunk-size`: those that the chunk objective implies (control)."""
    clip_range: ClipRange | None = None
    """Clip range; null: train.clip_range."""
    clip_ranges: Annotated[tuple[ClipRange, ...], Field(min_length=1)] | None = None
    """One clip range per chunk, instead of clip_range and train.clip_range; null: one for all chunks."""
    kl_coef: NonNegativeFloat | None = None
    """KL coefficient; null: train.kl_coef."""
    ratio_norm: RatioNorm = "none"
    """Normalisation of the ratio: `none`, or `guard` as in GRPO-Guard."""
    trust_region: TrustRegion = "clip"
    """Bound on an update: `clip` of the ratio, Eq. (13); `divergence` from the sampling policy, limited by the clip
    range, as in Flow-DPPO."""
    likelihood: Likelihood = "transition"
    """What stands for the log-probability of a step: `transition` of the SDE, Eq. (6); `matching` loss of noised
    final latents, negative (AWM); `nft`: DiffusionNFT's loss, negative, without a ratio."""
    nft_beta: PositiveFloat = 1.0
    """Mixture of the policy's and the sampling policy's velocity in DiffusionNFT."""
    controlled: bool = False
    """Whether train.heldout.controller acts on the training."""
    sde: Sde | None = None
    """Kind of noise of a step; null: sampling.sde."""
    eta: Eta | None = None
    """Scale of the noise; null: sampling.eta."""
    window: WindowParams | None = None
    """Sliding window of noisy steps; null: noise in all steps."""
    branching: BranchingParams | None = None
    """Branches instead of whole noisy trajectories; null: none."""
    advantage_std: AdvantageStd = "group"
    """Scope of the standard deviation that divides the advantage: `group`, or `global` (all rewards, as in
    Flow-GRPO's first release)."""
    combine: Combine = "rewards"
    """Combination of several rewards: sum of the `rewards`, sum of their standardised `advantages`, or that sum
    standardised again over the iteration, `gdpo`."""
    chunk_rewards: Annotated[tuple[Mix, ...], Field(min_length=1)] | None = None
    """One mix of `rewards` per chunk, each a mapping of scorer to weight; null: `rewards` for all chunks."""
