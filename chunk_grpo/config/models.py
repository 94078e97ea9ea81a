"""The sections of params.yaml: names, types and ranges.

No field has a default (but for what sets a variant apart, see variants.py): every value that moves a result
stands in params.yaml.
Units and sources stand beside the values, in conf/preset/.
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from chunk_grpo.config.prompts import PromptsParams
from chunk_grpo.config.scorers import AnyExecutor, AnyScorer
from chunk_grpo.config.section import (
    BatchSize,
    Eta,
    ImageCount,
    Mix,
    Name,
    NumSteps,
    Section,
    Seed,
    Shift,
    Side,
)
from chunk_grpo.config.training import TrainParams
from chunk_grpo.config.variants import VariantParams
from chunk_grpo.core.choices import Sde


class ModelParams(Section):
    """The base policy.

    Attributes:
        family: which adapter of chunk_grpo.families loads it.
        checkpoint: a local folder or a hub id.
        revision: a hub commit; null for a local folder.
        dtype: the precision in which the weights are held.
        guidance_scale: the embedded guidance value.
        max_sequence_length: tokens of the long text encoder (T5).
        height: of training images, in pixels.
        width: of training images, in pixels.
    """

    family: Literal["flux"]
    checkpoint: Annotated[str, Field(min_length=1)]
    revision: str | None
    dtype: Literal["float32", "bfloat16"]
    guidance_scale: Annotated[float, Field(ge=0, le=1000)]
    max_sequence_length: Annotated[int, Field(ge=1, le=4096)]
    height: Side
    width: Side


class EncodeParams(Section):
    """How the prompts are encoded.

    Attributes:
        batch_size: prompts per call of the text encoders.
    """

    batch_size: BatchSize


class ProfileParams(Section):
    """The relative L1 profile, Eq. (15), with the time grid and noise of `sampling`.

    Attributes:
        num_prompts: train prompts measured.
        num_seeds: noise seeds per prompt.
        batch_size: trajectories per forward pass.
        seed: of the first noise seed.
    """

    num_prompts: PositiveInt
    num_seeds: ImageCount
    batch_size: BatchSize
    seed: Seed


class SamplingParams(Section):
    """The sampler of the training rollouts and of the profile.

    Attributes:
        num_steps: T; the last step is deterministic and untrained, so T - 1 steps carry noise.
        shift: of the time grid, shift * t / (1 + (shift - 1) * t); 1 is no shift.
        sde: noise of a step.
        eta: its scale.
    """

    num_steps: NumSteps
    shift: Shift
    sde: Sde
    eta: Eta

    @property
    def num_sde_steps(self) -> int:
        """The steps that carry noise and are trained."""
        return self.num_steps - 1


class StepPlan(Section):
    """Each step is its own chunk."""

    kind: Literal["step"]

    def chunk_count(self, num_sde_steps: int) -> int:
        """K for a trajectory with `num_sde_steps` noisy steps."""
        return num_sde_steps


class SinglePlan(Section):
    """All steps are one chunk: the sequence ratio."""

    kind: Literal["single"]

    def chunk_count(self, num_sde_steps: int) -> int:
        """K for a trajectory with `num_sde_steps` noisy steps."""
        del num_sde_steps  # one chunk, however long
        return 1


class ListedPlan(Section):
    """The sizes are given, from noise to image."""

    kind: Literal["listed"]
    sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]

    def chunk_count(self, num_sde_steps: int) -> int:
        """K; whether the sizes fit `num_sde_steps` is a rule of its own."""
        del num_sde_steps
        return len(self.sizes)


class EqualPlan(Section):
    """Chunks of one size; the last may be shorter."""

    kind: Literal["equal"]
    chunk_size: PositiveInt

    def chunk_count(self, num_sde_steps: int) -> int:
        """K for a trajectory with `num_sde_steps` noisy steps."""
        return -(-num_sde_steps // self.chunk_size)


class GuidedPlan(Section):
    """Boundaries from the measured profile, at least two steps a chunk."""

    kind: Literal["guided"]
    num_chunks: PositiveInt

    def chunk_count(self, num_sde_steps: int) -> int:
        """K as asked for."""
        del num_sde_steps
        return self.num_chunks


class AdaptivePlan(Section):
    """Each trajectory its own chunks, from the shape of its own relative L1 curve; none longer than `max_size`."""

    kind: Literal["adaptive"]
    max_size: PositiveInt

    def chunk_count(self, num_sde_steps: int) -> int:
        """The smallest K that a trajectory with `num_sde_steps` noisy steps can get."""
        return -(-num_sde_steps // self.max_size)


PlanParams = Annotated[
    StepPlan | SinglePlan | ListedPlan | EqualPlan | GuidedPlan | AdaptivePlan,
    Field(discriminator="kind"),
]


class ChunksParams(Section):
    """The chunk plans that variants choose from.

    Attributes:
        plans: plan name to plan.
    """

    plans: Annotated[dict[Name, PlanParams], Field(min_length=1)]


class GenerateParams(Section):
    """Evaluation images.

    Attributes:
        num_steps: ODE steps.
        shift: of the time grid.
        base_steps: in the mode `hybrid`, the last of them taken by the base policy (App. B.3).
        images_per_prompt: images per eval prompt; the same noise for every policy.
        batch_size: images per forward pass.
        seed: of the noise.
        height: in pixels.
        width: in pixels.
    """

    num_steps: NumSteps
    shift: Shift
    base_steps: NonNegativeInt
    images_per_prompt: ImageCount
    batch_size: BatchSize
    seed: Seed
    height: Side
    width: Side


class PoolsParams(Section):
    """On which work pool of Prefect stages run; null: where the flow runs. `dvc repro` does not look at it.

    Attributes:
        encode: prompts.
        profile: the relative L1 distances.
        train: the variants.
        generate: evaluation images.
        score: evaluation images.
    """

    encode: Name | None
    profile: Name | None
    train: Name | None
    generate: Name | None
    score: Name | None


class ReportParams(Section):
    """The report.

    Attributes:
        title: its heading.
        bootstrap_samples: resamples behind each interval.
        grid_prompts: prompts of the image grid.
        seed: of the bootstrap and of the grid's choice.
    """

    title: str
    bootstrap_samples: Annotated[int, Field(ge=100, le=100_000)]
    grid_prompts: PositiveInt
    seed: Seed


class Params(Section):
    """All of params.yaml.

    Attributes:
        composed_from: the preset of conf/ that it was composed from; for the reader only.
        rewards: name in `scorers` to its weight in the training reward.
        variants: variant name to variant.
        scorers: scorer name to scorer; all of them score evaluation images.
        executors: scorer name to where it runs; without an entry in the stage's process. No result depends on it.
        trackers: who is told the metrics while training goes on; no result depends on it.
        pools: where a flow runs stages; no result depends on it.
    """

    composed_from: str
    model: ModelParams
    prompts: PromptsParams
    encode: EncodeParams
    profile: ProfileParams
    sampling: SamplingParams
    chunks: ChunksParams
    rewards: Annotated[Mix, Field(min_length=1)]
    train: TrainParams
    variants: Annotated[dict[Name, VariantParams], Field(min_length=1)]
    generate: GenerateParams
    scorers: Annotated[dict[Name, AnyScorer], Field(min_length=1)]
    executors: dict[Name, AnyExecutor]
    report: ReportParams
    trackers: tuple[Literal["tensorboard", "wandb"], ...]
    pools: PoolsParams

    def variant_fraction(self, variant: str) -> float:
        """The fraction that `variant` trains with: its own, else train.fraction."""
        own = self.variants[variant].fraction
        return self.train.fraction if own is None else own

    def variant_kl_coef(self, variant: str) -> float:
        """The KL coefficient that `variant` trains with: its own, else train.kl_coef."""
        own = self.variants[variant].kl_coef
        return self.train.kl_coef if own is None else own

    def variant_noise(self, variant: str) -> tuple[Sde, float]:
        """How noisy `variant`'s steps are, and eta: its own, else those of `sampling`."""
        own = self.variants[variant]
        return own.sde or self.sampling.sde, self.sampling.eta if own.eta is None else own.eta
