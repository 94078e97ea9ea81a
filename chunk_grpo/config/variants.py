"""The section `variants` of params.yaml: the settings in which the trained policies differ.

Every method is a combination of independent settings. The defaults are those of Chunk-GRPO; a key that `train` or
`sampling` also has defaults to the value there. docs/methods.md lists the methods of the papers.
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from chunk_grpo.config.section import ClipRange, Eta, Fraction, Mix, Section
from chunk_grpo.core.choices import (
    AdvantageStd,
    Combine,
    Credit,
    Likelihood,
    Objective,
    RatioNorm,
    Sde,
    Selection,
    Solver,
    StepWeights,
    TrustRegion,
)


class WindowParams(Section):
    """Noise in a window of consecutive steps; ODE steps elsewhere.

    MixGRPO's moves from noise to image. With `starts` its place is drawn, as in Flow-GRPO-Fast.
    """

    num_steps: PositiveInt
    """Steps in the window, which are trained one by one; at most `sampling.num_steps` - 1. Source: MixGRPO."""
    stride: PositiveInt = 1
    """Steps by which the window moves, at most `num_steps`. Source: MixGRPO."""
    every: PositiveInt = 1
    """Iterations between two moves. Source: MixGRPO."""
    starts: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = None
    """First steps of the window, 0 nearest to noise: each iteration draws one of them, for all images; null: the window
    moves. Source: flow_grpo's code."""


class BranchingParams(Section):
    """TempFlow-GRPO: ODE trajectories with one noisy step each."""

    points: PositiveInt
    """Number of branching steps per iteration, drawn anew in each iteration; at most `sampling.num_steps` - 1. Source:
    TempFlow-GRPO."""
    children: Annotated[int, Field(ge=2)]
    """Images that branch off one trajectory at one step; they form a group. The number divides `train.group_size`: a
    prompt has group_size / children trajectories, so points * group_size images. Source: TempFlow-GRPO."""


class SamplingAverageParams(Section):
    """An average of the weights that moves once a rollout, after its updates: old <- d old + (1 - d) latest.

    After k updates in all, d is 0 for k < flat, and then min(rate (k - flat), limit).
    """

    rate: Annotated[float, Field(gt=0, le=1)] = 0.001
    """What d grows by with each update. Source: DiffusionNFT's code."""
    limit: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Largest d. Source: DiffusionNFT's code."""
    flat: NonNegativeInt = 0
    """Updates before d grows; 75 with a rate of 0.0075 and a limit of 0.999 in DiffusionNFT's OCR example."""


class VariantParams(Section):
    """Settings of one variant."""

    objective: Objective
    """Level of the importance ratio. `chunk`: one ratio per chunk, Eq. (13); `step`: one ratio per step, Eq. (5), for
    the steps of the selected chunks. Source: Table 1."""
    plan: str
    """Name in `chunks.plans`; chunks of this plan are selected for training. Source: Table 1, Table 3."""
    selection: Selection = "uniform"
    """Distribution of the selected chunks. `uniform`; `weighted` by Eq. (16), as released; `unbiased`: weighted, with
    importance weights as correction; `annealed`: from weighted to uniform over the run; `trajectory`: weighted by each
    trajectory's own L1 distances. Source: Table 1, "w/ ws"."""
    selection_exponent: Fraction = 1.0
    """Exponent of the weights of a `selection` other than `uniform`. 1: Eq. (16), near 0: an almost uniform draw."""
    fraction: Fraction | None = None
    """Share of the chunks selected per sample and update; null: `train.fraction`. Source: Table 6."""
    train_chunks: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = None
    """Chunks that may be selected, each once, 0 nearest to noise; null: all. Source: Fig. 6."""
    replan_every: PositiveInt | None = None
    """Iterations after which a plan of `kind: guided` is recomputed from the current policy; null: never."""
    step_weights: StepWeights = "uniform"
    """Weights of the terms of `objective: step`. `uniform`; `noise`: by TempFlow-GRPO; `interval`: 1 / dt, the inverse
    of the step's width, by GRPO-Guard; `chunk-size`: those that the chunk objective, Eq. (13), implies on policy
    (control). Source: TempFlow-GRPO, Eq. (8)."""
    clip_range: ClipRange | None = None
    """Clip range; null: `train.clip_range`. Source: as `train.clip_range`."""
    clip_ranges: Annotated[tuple[ClipRange, ...], Field(min_length=1)] | None = None
    """One clip range per chunk, instead of `clip_range` and `train.clip_range`; null: one for all chunks."""
    kl_coef: NonNegativeFloat | None = None
    """KL coefficient; null: `train.kl_coef`. Source: as `train.kl_coef`."""
    learning_rate: PositiveFloat | None = None
    """Learning rate; null: `train.learning_rate`. Methods compared at one rate are not compared at their best. Source:
    as `train.learning_rate`."""
    ratio_norm: RatioNorm = "none"
    """Normalisation of the ratio. `none`; `guard`: normalised ratios, on a scale of their own. Source: GRPO-Guard."""
    trust_region: TrustRegion = "clip"
    """Bound on an update. `clip`: `clip_range` limits the ratio, Eq. (13); `divergence`: it limits the divergence from
    the sampling policy. Source: Flow-DPPO."""
    likelihood: Likelihood = "transition"
    """What stands for the log-probability of a step. `transition`: that of the SDE, Eq. (6); `matching`: minus the
    matching loss of noised final latents (AWM); `nft`: minus DiffusionNFT's loss, without a ratio. Source: AWM,
    DiffusionNFT."""
    nft_beta: PositiveFloat = 1.0
    """Mixture of the policy's and the sampling policy's velocity with `likelihood: nft`. Source: DiffusionNFT."""
    forward_noise: Literal["image", "group"] = "image"
    """What shares the noise of a step, with another `likelihood` than `transition`. `image`: each image has its own;
    `group`: the images of a group have the same, so that their values differ less by chance. Source: V-GRPO, arXiv
    2604.23380."""
    forward_times: Literal["grid", "stratified"] = "grid"
    """Times to which images are noised, with another `likelihood` than `transition`. `grid`: the time of each step;
    `stratified`: a time drawn from the step's part of (0, 1], for each image or group, as `forward_noise` says. Source:
    V-GRPO, arXiv 2604.23380."""
    sampling_average: SamplingAverageParams | None = None
    """Average of the weights that gives the images and the old velocities with `likelihood: nft`; null: the latest
    weights do. Source: DiffusionNFT."""
    controlled: bool = False
    """Whether `train.heldout.controller` acts on the training."""
    sde: Sde | None = None
    """Kind of noise of a step, as `sampling.sde`; or `ode`: none, for a `likelihood` other than `transition`; null:
    `sampling.sde`. Source: CPS; DiffusionNFT."""
    eta: Eta | None = None
    """Scale of the noise; at most 1 with `sde: cps`; null: `sampling.eta`. Source: as `sampling.eta`."""
    solver: Solver = "euler"
    """Rule of the rollouts' steps with `sde: ode`. `euler`: Eq. (3); `dpm2`: DPM-Solver++ (2M), of second order and as
    many evaluations. Evaluation images are Euler's. Source: DiffusionNFT."""
    window: WindowParams | None = None
    """Window of noisy steps, which moves or is drawn; null: noise in all steps. Source: MixGRPO."""
    branching: BranchingParams | None = None
    """Branches instead of whole noisy trajectories; null: none. Source: TempFlow-GRPO."""
    advantage_std: AdvantageStd = "group"
    """Scope of the standard deviation that divides the advantage. `group`: Eq. (4); `global`: all rewards of the
    iteration, as in Flow-GRPO's first release. Source: Flow-GRPO."""
    credit: Credit = "image"
    """What a chunk's advantage is made of. `image`: the reward of the image, the same for all chunks; `chunk-gains`:
    the reward of the image that is predicted at the end of the chunk minus that at its beginning, standardised for each
    chunk; an image is then decoded and scored once more for each chunk. Source: ours, after DenseGRPO and
    Stepwise-Flow-GRPO."""
    combine: Combine = "rewards"
    """Combination of several rewards. `rewards`: their weighted sum; `advantages`: the weighted sum of their
    standardised advantages; `gdpo`: that sum standardised again over the iteration. Source: GDPO."""
    chunk_rewards: Annotated[tuple[Mix, ...], Field(min_length=1)] | None = None
    """One mix of `rewards` per chunk, each a mapping of scorer to weight; null: `rewards` for all chunks."""
