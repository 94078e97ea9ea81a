"""A variant: the settings by which one trained policy differs from another.

Every method is a choice of a few independent settings. What a variant leaves out is as in Chunk-GRPO, and where
`train` or `sampling` has a key of the same name, as there. docs/methods.md lists the methods of the papers.
"""

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from chunk_grpo.config.section import ClipRange, Eta, Fraction, Mix, Section
from chunk_grpo.core.choices import AdvantageStd, Combine, Objective, RatioNorm, Sde, Selection, StepWeights


class WindowParams(Section):
    """MixGRPO: noise in a window of consecutive steps that moves from noise to image; ODE steps elsewhere.

    Attributes:
        num_steps: steps in the window.
        stride: steps per move, at most `num_steps`.
        every: iterations between two moves.
    """

    num_steps: PositiveInt
    stride: PositiveInt
    every: PositiveInt


class BranchingParams(Section):
    """TempFlow-GRPO: an ODE run, one noisy step, and the ODE to the end.

    Attributes:
        points: steps branched at in an iteration, drawn anew each time.
        children: images that branch off one run at one step: the group that is compared. A prompt has
            group_size / children runs, so points * group_size images in all.
    """

    points: PositiveInt
    children: Annotated[int, Field(ge=2)]


class VariantParams(Section):
    """What makes one trained policy differ from another.

    Attributes:
        objective: level of the importance ratio: `chunk` has one ratio a chunk, Eq. (13); `step` one a step, Eq. (5),
            for the steps of the drawn chunks.
        plan: a name in chunks.plans; its chunks are what is drawn.
        selection: how chunks are drawn: `uniform`; `weighted` by Eq. (16), as released; `unbiased`, so weighted
            and then corrected by importance weights; `annealed` from weighted to uniform over the run.
        fraction: share of the chunks drawn for each sample and update, in place of train.fraction.
        train_chunks: the chunks that may be drawn, 0 nearest to noise; null is all.
        replan_every: iterations after which a guided plan is made anew from the current policy; null never.
        step_weights: weights of the step objective's terms: `uniform`; `noise` (TempFlow-GRPO); `chunk-size`, those
            that the chunk objective implies (the control).
        clip_range: in place of train.clip_range.
        clip_ranges: one clip range for each chunk, in place of both.
        kl_coef: in place of train.kl_coef.
        ratio_norm: `guard` is GRPO-Guard's normalised ratio.
        sde: the noise of a step, in place of sampling.sde.
        eta: its scale, in place of sampling.eta.
        window: a sliding window of noisy steps.
        branching: branches in place of whole noisy trajectories.
        advantage_std: the standard deviation of `group`, or the `global` one of Flow-GRPO's first release.
        combine: several rewards by the sum of `rewards`, or by that of their standardised `advantages`.
        chunk_rewards: for each chunk its own mix of `rewards`: scorer to weight.
    """

    objective: Objective
    plan: str
    selection: Selection = "uniform"
    fraction: Fraction | None = None
    train_chunks: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = None
    replan_every: PositiveInt | None = None
    step_weights: StepWeights = "uniform"
    clip_range: ClipRange | None = None
    clip_ranges: Annotated[tuple[ClipRange, ...], Field(min_length=1)] | None = None
    kl_coef: NonNegativeFloat | None = None
    ratio_norm: RatioNorm = "none"
    sde: Sde | None = None
    eta: Eta | None = None
    window: WindowParams | None = None
    branching: BranchingParams | None = None
    advantage_std: AdvantageStd = "group"
    combine: Combine = "rewards"
    chunk_rewards: Annotated[tuple[Mix, ...], Field(min_length=1)] | None = None
