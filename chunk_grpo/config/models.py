"""The sections of params.yaml: names, types and ranges.

A key that may be left out has a default here. The presets list every key. Keys that dvc.yaml names have none, because
DVC needs them. Units and sources are in the comments of conf/preset/.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt

from chunk_grpo.config.families import known_family
from chunk_grpo.config.policies import AnyPolicy
from chunk_grpo.config.prompts import PromptsParams
from chunk_grpo.config.scorers import AnyExecutor, AnyScorer
from chunk_grpo.config.section import (
    BatchSize,
    CfgScale,
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

AttentionBackend = Literal[
    "native",
    "_native_efficient",
    "_native_flash",
    "_native_math",
    "flash",
    "flash_hub",
    "_flash_3",
    "_flash_3_hub",
    "flash_4_hub",
    "xformers",
]
"""Names of diffusers, without those that give no gradient (sage) or failed in training (_native_cudnn), and those for
packed texts (varlen) or other devices."""


class ModelParams(Section):
    """The base policy."""

    family: Annotated[str, AfterValidator(known_family)]
    """Model family in chunk_grpo.families."""
    checkpoint: Annotated[str, Field(min_length=1)]
    """Local folder or hub id."""
    revision: str | None = None
    """Hub commit; null for a local folder."""
    dtype: Literal["float32", "bfloat16"]
    """Precision of the weights."""
    guidance_scale: Annotated[float, Field(ge=0, le=1000)] = 3.5
    """Guidance strength that is an input of the network (FLUX.1-dev); unused by other networks."""
    negative_prompt: str = ""
    """Prompt that classifier-free guidance moves away from."""
    cfg_passes: Literal[1, 2] = 1
    """Passes of the network for a guided velocity: 1, of twice as many images, or 2."""
    max_sequence_length: Annotated[int, Field(ge=1, le=4096)]
    """Token limit of the long text encoder (T5)."""
    height: Side
    """Height of training images, in pixels."""
    width: Side
    """Width of training images, in pixels."""
    attention_backend: AttentionBackend | None = None
    """The transformer's attention kernel, by diffusers' name; null: torch's choice without cuDNN's."""


class EncodeParams(Section):
    """Encoding of the prompts."""

    batch_size: BatchSize = 8
    """Prompts per call of the text encoders."""


class TrialParams(Section):
    """Trial of every scorer before prompts are encoded. Does not affect results."""

    images: Annotated[int, Field(ge=0, le=1000)]
    """Made-up images that a scorer judges in each of its splits; 0: no trial."""


class ProfileParams(Section):
    """Measurement of the relative L1 profile, Eq. (15), with the time grid and noise of `sampling`."""

    num_prompts: PositiveInt
    """Number of train prompts."""
    num_seeds: ImageCount = 2
    """Number of noise seeds per prompt."""
    batch_size: BatchSize = 4
    """Trajectories per forward pass."""
    seed: Seed = 0
    """First noise seed."""


class SamplingParams(Section):
    """The sampler of the training rollouts and of the profile."""

    num_steps: NumSteps
    """Number of sampling steps, T. The last step is deterministic and untrained, so T - 1 steps are noisy."""
    shift: Shift | None
    """Shift of the time grid, shift * t / (1 + (shift - 1) * t); 1: no shift; null: the grid of diffusers' pipeline,
    by the checkpoint's scheduler."""
    cfg_scale: CfgScale = 1.0
    """Scale of classifier-free guidance; 1: none. The trained policy is the guided one."""
    sde: Sde = "flow"
    """Kind of noise of a step."""
    eta: Eta = 0.7
    """Scale of the noise."""

    @property
    def num_sde_steps(self) -> int:
        """Number of noisy steps, which are the trained ones."""
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
        """K; the rule plans_fit_steps checks the sizes against `num_sde_steps`."""
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
        """K, `num_chunks`."""
        del num_sde_steps
        return self.num_chunks


class AdaptivePlan(Section):
    """Chunks per trajectory, from its own relative L1 curve; none is longer than `max_size`."""

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
    """The chunk plans that variants choose from."""

    plans: Annotated[dict[Name, PlanParams], Field(min_length=1)]
    """Plan name to plan."""


class GenerateParams(Section):
    """Evaluation images."""

    num_steps: NumSteps
    """Number of ODE steps."""
    shift: Shift | None
    """Shift of the time grid, as in `sampling`."""
    cfg_scale: CfgScale = 1.0
    """Scale of classifier-free guidance; 1: none."""
    base_steps: NonNegativeInt
    """Number of last steps that the base policy takes in the mode `hybrid` (App. B.3)."""
    images_per_prompt: ImageCount = 1
    """Images per eval prompt; every policy uses the same noise."""
    batch_size: BatchSize = 4
    """Images per forward pass."""
    seed: Seed = 2000
    """Seed of the image noise."""
    height: Side
    """Image height in pixels."""
    width: Side
    """Image width in pixels."""


class PoolsParams(Section):
    """Prefect work pool of each stage; null: the stage runs in the flow's process. `dvc repro` ignores this section."""

    encode: Name | None
    """Pool of the stage that encodes prompts."""
    profile: Name | None
    """Pool of the stage that measures the relative L1 profile."""
    train: Name | None
    """Pool of the stage that trains a variant."""
    generate: Name | None
    """Pool of the stage that generates evaluation images."""
    score: Name | None
    """Pool of the stage that scores evaluation images."""


class ReportParams(Section):
    """The report."""

    title: str | None = None
    """Heading of the report; null: made of the checkpoint and the reward."""
    grid_prompts: PositiveInt = 8
    """Number of prompts in the image grid."""
    seed: Seed = 0
    """Seed of the choice of grid prompts."""


class Params(Section):
    """All of params.yaml."""

    composed_from: str
    """Preset of conf/ from which params.yaml was composed; informative only."""
    model: ModelParams
    prompts: PromptsParams
    encode: EncodeParams
    profile: ProfileParams
    sampling: SamplingParams
    chunks: ChunksParams
    rewards: Annotated[Mix, Field(min_length=1)]
    """Name in `scorers` to its weight in the training reward."""
    train: TrainParams
    variants: Annotated[dict[Name, VariantParams], Field(min_length=1)]
    """Variant name to variant."""
    generate: GenerateParams
    policies: dict[Name, AnyPolicy]
    """Policy name to a saved policy, or to images, that the report compares beside the variants."""
    scorers: Annotated[dict[Name, AnyScorer], Field(min_length=1)]
    """Scorer name to settings; all scorers score evaluation images."""
    executors: dict[Name, AnyExecutor]
    """Scorer name to executor; default: in the stage's process. Does not affect results."""
    trial: TrialParams
    """Trial of every scorer before long work. Does not affect results."""
    report: ReportParams
    trackers: tuple[Literal["tensorboard", "wandb"], ...]
    """Metric trackers during training. Does not affect results."""
    pools: PoolsParams
    """Prefect work pools of the stages. Does not affect results."""
