"""The sections of params.yaml: names, types and ranges.

A key that may be left out has a default here. The presets list every key. Keys that dvc.yaml names have none, because
DVC needs them. docs/parameters.md is made of these models and their docstrings (reference.py).
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


BasePrecision = Literal["int8", "float8", "nf4"]
"""Names of torchao, of frozen layers. Its four-bit integers (int4) need a package for GPUs alone."""


class ModelParams(Section):
    """The base policy."""

    family: Annotated[str, AfterValidator(known_family)]
    """Model family (docs/families.md): a module of `chunk_grpo/families/models/`, or a module of yours, such as
    `package.module`."""
    checkpoint: Annotated[str, Field(min_length=1)]
    """Local folder of the family's pipeline, or hub id. Source: toy; Sec. 5.1: FLUX.1-dev."""
    revision: str | None = None
    """Hub commit, 40 hexadecimal digits; null for a local folder."""
    dtype: Literal["float32", "bfloat16"]
    """Precision of the weights."""
    base_precision: BasePrecision | None = None
    """Precision of the linear layers in the transformer's blocks, quantised by torchao (`pip install
    'torchao>=0.18,<0.19'`) when it is loaded; null: `dtype`. `int8`, `float8`: a byte a weight, a scale for each row;
    `nf4`: half a byte, a scale for each 64 values. Needs `train.lora`, which is trained in float32 beside it, and
    neither `train.compile: true` nor `train.shard_weights`. All stages use the same quantised weights, so base and
    tuned images, profile, rollouts, updates and the KL reference share a network; so does a whole transformer in
    `policies`.
    With `int8` and `float8`, `train.gradient_checkpointing` is needed to save memory in the update: else each layer
    keeps a copy of its weights in `dtype` for the backward pass."""
    block_swap: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the transformer's blocks, evenly spaced, whose linear layers keep their weights in the CPU's memory, and
    copy them to the GPU each time they are used; 0: none. Does not affect results. Needs `train.lora` and
    `train.gradient_checkpointing: true`, and neither `base_precision`, `train.compile: true` nor
    `train.shard_weights`. In all stages."""
    text_precision: BasePrecision | None = None
    """Precision of the linear layers in the text encoders' blocks, which are quantised as `base_precision` quantises;
    null: `dtype`. It changes the embeddings of all prompts, and so the images of training and evaluation."""
    guidance_scale: Annotated[float, Field(ge=0, le=1000)] = 3.5
    """Guidance strength that is an input of guidance-distilled networks (FLUX.1-dev); others do not use it. Source:
    FLUX.1-dev's default, DanceGRPO's code."""
    negative_prompt: str = ""
    """Prompt that classifier-free guidance moves away from. Source: the pipelines' default."""
    cfg_passes: Literal[1, 2] = 1
    """Passes of the network for a guided velocity. 1: one pass for twice as many images; 2: two passes, whose
    activations without gradients take half of the memory."""
    max_sequence_length: Annotated[int, Field(ge=1, le=4096)]
    """Token limit of the long text encoder (T5). Source: toy; FLUX.1-dev takes up to 512."""
    height: Side
    """Height of training images, in pixels. Source: toy; Table 6: 720."""
    width: Side
    """Width of training images, in pixels. Source: toy; Table 6: 720."""
    attention_backend: AttentionBackend | None = None
    """The transformer's attention kernel, by diffusers' name; null: torch's choice without cuDNN's."""


class EncodeParams(Section):
    """Encoding of the prompts."""

    batch_size: BatchSize = 8
    """Prompts per call of the text encoders."""


class TrialParams(Section):
    """Trial of every scorer before prompts are encoded. Does not affect results."""

    images: Annotated[int, Field(ge=0, le=1000)]
    """Made-up images that a scorer judges in each of its splits; 0: no trial. Does not affect results."""


class ProfileParams(Section):
    """Measurement of the relative L1 profile, Eq. (15), with the time grid and noise of `sampling`."""

    num_prompts: PositiveInt
    """Number of train prompts that are measured, at most `prompts.train_count`. Source: toy."""
    num_seeds: ImageCount = 2
    """Number of noise seeds per prompt. Source: toy."""
    batch_size: BatchSize = 4
    """Trajectories per forward pass."""
    seed: Seed = 0
    """First noise seed, at most 2^63 - `num_seeds`."""


class SamplingParams(Section):
    """The sampler of the training rollouts and of the profile."""

    num_steps: NumSteps
    """Number of sampling steps, T. The last step is deterministic and untrained, so T - 1 steps are noisy. Source:
    Table 6."""
    shift: Shift | None
    """Shift of the time grid, shift * t / (1 + (shift - 1) * t); 1: no shift; null: the grid of diffusers' pipeline for
    images of this size, by the checkpoint's scheduler. Source: Table 6."""
    cfg_scale: CfgScale = 1.0
    """Scale of classifier-free guidance; 1: none. Above 1 the trained policy is the guided one. Source: ours;
    FLUX.1-dev has an embedded scale."""
    sde: Sde = "flow"
    """Kind of noise of a step. `flow`: eta * sqrt(t / (1 - t)); `dance`: eta; `cps`: coefficients-preserving sampling.
    `ode`, none, is for single variants. Source: Eq. (7), which leaves the form open."""
    eta: Eta = 0.7
    """Scale of the noise; at most 1 with `sde: cps`. Source: Table 6."""

    @property
    def num_sde_steps(self) -> int:
        """Number of noisy steps, which are the trained ones."""
        return self.num_steps - 1


class StepPlan(Section):
    """Each step is its own chunk."""

    kind: Literal["step"]


class SinglePlan(Section):
    """All steps are one chunk: the sequence ratio."""

    kind: Literal["single"]


class ListedPlan(Section):
    """The sizes are given, from noise to image."""

    kind: Literal["listed"]
    sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Steps of each chunk, from noise to image; their sum is `sampling.num_steps` - 1. Source: App. B.1."""


class EqualPlan(Section):
    """Chunks of one size; the last may be shorter."""

    kind: Literal["equal"]
    chunk_size: PositiveInt
    """Steps of a chunk, at most `sampling.num_steps` - 1. Source: Table 3."""


class GuidedPlan(Section):
    """Boundaries from the measured profile, at least two steps a chunk."""

    kind: Literal["guided"]
    num_chunks: PositiveInt
    """Number of chunks; each has at least two steps. Source: App. B.1."""


class AdaptivePlan(Section):
    """Chunks per trajectory, from its own relative L1 curve; none is longer than `max_size`."""

    kind: Literal["adaptive"]
    max_size: PositiveInt
    """Steps of the largest chunk, at most `sampling.num_steps` - 1."""


PlanParams = Annotated[
    StepPlan | SinglePlan | ListedPlan | EqualPlan | GuidedPlan | AdaptivePlan, Field(discriminator="kind")
]


def chunk_count(plan: PlanParams, num_sde_steps: int) -> int:
    """K for a trajectory with `num_sde_steps` noisy steps; of an adaptive plan the smallest."""
    match plan:
        case StepPlan():
            return num_sde_steps
        case SinglePlan():
            return 1
        case ListedPlan():
            return len(plan.sizes)
        case EqualPlan(chunk_size=size) | AdaptivePlan(max_size=size):
            return -(-num_sde_steps // size)
        case GuidedPlan():
            return plan.num_chunks


class ChunksParams(Section):
    """The chunk plans that variants choose from."""

    plans: Annotated[dict[Name, PlanParams], Field(min_length=1)]
    """A chunk plan, by its name. Source: Eq. (12), Table 3, App. B.1; adaptive: v3 of the paper."""


class GenerateParams(Section):
    """Evaluation images."""

    num_steps: NumSteps
    """Number of ODE steps. Source: App. B.3."""
    shift: Shift | None
    """Shift of the time grid, as `sampling.shift`. Source: toy; FLUX.1-dev at 1024x1024: 3.158."""
    cfg_scale: CfgScale = 1.0
    """Scale of classifier-free guidance, as `sampling.cfg_scale`; 1: none. Source: as `sampling.cfg_scale`."""
    base_steps: NonNegativeInt
    """Number of last steps that the base policy takes in the mode `hybrid`, at most `num_steps`. Source: App. B.3."""
    images_per_prompt: ImageCount = 1
    """Images per eval prompt; every policy uses the same noise. Source: toy."""
    batch_size: BatchSize = 4
    """Images per forward pass."""
    seed: Seed = 2000
    """Seed of the image noise."""
    height: Side
    """Image height, in pixels. Source: toy."""
    width: Side
    """Image width, in pixels. Source: toy."""


class PoolsParams(Section):
    """Prefect work pool of each stage; null: the stage runs in the flow's process. `dvc repro` ignores this section."""

    encode: Name | None
    """Work pool on which a Prefect flow encodes the prompts; null: where the flow runs."""
    profile: Name | None
    """Work pool on which a Prefect flow measures the profile; null: where the flow runs."""
    train: Name | None
    """Work pool on which a Prefect flow trains each variant; null: where the flow runs."""
    generate: Name | None
    """Work pool on which a Prefect flow generates the evaluation images; null: where the flow runs."""
    score: Name | None
    """Work pool on which a Prefect flow scores the evaluation images; null: where the flow runs."""


class ReportParams(Section):
    """The report."""

    title: str | None = None
    """Heading of the report; null: made of the checkpoint and the reward."""
    grid_prompts: PositiveInt = 8
    """Number of prompts in the image grid, at most `prompts.eval_count`."""
    seed: Seed = 0
    """Seed of the choice of grid prompts."""


class Params(Section):
    """All of params.yaml."""

    composed_from: str
    """Preset of `conf/` from which params.yaml was composed; for the reader and the report only."""
    model: ModelParams
    prompts: PromptsParams
    encode: EncodeParams
    profile: ProfileParams
    sampling: SamplingParams
    chunks: ChunksParams
    rewards: Annotated[Mix, Field(min_length=1)]
    """Weight of a scorer in the training reward; SCORER is a name in `scorers`. Source: toy; Sec. 5.1: HPSv3."""
    train: TrainParams
    variants: Annotated[dict[Name, VariantParams], Field(min_length=1)]
    """Settings of a variant, by its name, which must not be `base`."""
    generate: GenerateParams
    policies: dict[Name, AnyPolicy]
    """A saved policy, or images, that the report compares beside the variants, by its name, which is neither `base` nor
    a variant's."""
    scorers: Annotated[dict[Name, AnyScorer], Field(min_length=1)]
    """Settings of a scorer, by its name; all scorers score evaluation images. Source: toy; Sec. 5.1: HPSv3,
    ImageReward."""
    executors: dict[Name, AnyExecutor]
    """Where a scorer runs; NAME is its name in `scorers`. Without an entry it runs in the stage's process and has 3600
    s for a batch. Does not affect results."""
    trial: TrialParams
    """Trial of every scorer before prompts are encoded. Does not affect results."""
    report: ReportParams
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...]
    """Metric trackers during training, each once. Does not affect results."""
    pools: PoolsParams
    """Prefect work pools of the stages; `dvc repro` ignores this section. Does not affect results."""

    @property
    def compiles(self) -> bool:
        """Whether training compiles the transformer's blocks on a GPU where torch can."""
        wanted, model = self.train.compile, self.model
        return wanted is True or (wanted == "auto" and model.base_precision is None and model.block_swap == 0)
