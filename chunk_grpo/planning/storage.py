"""Prompts, files and host memory of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chunk_grpo.config import Params
from chunk_grpo.config.prompts import CocoPrompts, FilePrompts
from chunk_grpo.planning.images import evaluated_sets
from chunk_grpo.planning.memory import averages_of, offloaded_bytes, predicted_bytes, trajectory_bytes
from chunk_grpo.planning.scorers import scoring
from chunk_grpo.planning.settings import Settings
from chunk_grpo.training.schedule import scheduled_prompts

FLOAT32 = 4

PNG_BYTES = 1.5
"""Assumed bytes of a pixel in a PNG of a photograph; drawings take far less."""

PROCESS_BYTES = 4e9
"""Assumed host memory of a training process: torch with CUDA, libraries, the scorers' tokenizers."""

BENCHMARK_PROMPTS = {"geneval": 553, "wise": 1000, "dpg": 1065}
"""Prompts of a benchmark whose `count` is null."""


@dataclass(frozen=True)
class Prompts:
    """Prompts of a run."""

    listed: int
    """Training prompts in params.yaml."""
    used: int
    """Training prompts that the schedule draws."""
    encoded_of_seed: int
    """Prompts of a seed's training embeddings: the drawn ones, and the held-out ones."""
    encoded_of_profile: int
    """Prompts of the profile's embeddings."""
    evaluated: int
    """Prompts with evaluation images, without prompts of files that have no count."""


def prompts_of(params: Params) -> Prompts:
    """Prompts that training draws and evaluation images are made of."""
    train, source = params.train, params.prompts
    drawn = [
        scheduled_prompts(seed, train.iterations, train.prompts_per_iteration, source.train_count)
        for seed in train.seeds
    ]
    evaluated = source.eval_count + source.wise_count
    for benchmark in source.benchmarks.values():
        count = benchmark.count
        if count is None and not isinstance(benchmark, CocoPrompts):
            count = BENCHMARK_PROMPTS.get(benchmark.kind, 0)
        evaluated += count or 0
    of_seed = len(drawn[0]) + min(train.heldout.num_prompts, source.eval_count)
    of_profile = min(source.train_count, params.profile.num_prompts)
    return Prompts(source.train_count, len(set().union(*drawn)), of_seed, of_profile, evaluated)


def encoded_for_training(params: Params) -> list[int]:
    """Prompts of the embeddings of the profile, and of each training seed."""
    prompts = prompts_of(params)
    return [prompts.encoded_of_profile, *len(params.train.seeds) * [prompts.encoded_of_seed]]


def counts_all(params: Params) -> bool:
    """Whether every benchmark's number of prompts is known."""
    return all(
        not isinstance(benchmark, FilePrompts) or benchmark.count is not None
        for benchmark in params.prompts.benchmarks.values()
    )


@dataclass(frozen=True)
class Storage:
    """Bytes and files of a run."""

    training_embeddings: float
    """Embeddings of the profile's prompts, and of the training prompts of all seeds."""
    evaluation_embeddings: float
    """Embeddings of the evaluation prompts."""
    checkpoint: float
    """One checkpoint of a training run."""
    checkpoints: float
    """Checkpoints on the disk while one more is written, with the best policy's. `train.keep_state` keeps the
    checkpoints of all runs."""
    policy: float
    """One saved policy."""
    policies: float
    """Policies of all variants and seeds, with the best ones."""
    images: int
    """Number of evaluation images."""
    image_bytes: float
    """Their files, about."""
    host: float
    """Host memory of a training machine, about: processes with their offloaded parts and swapped blocks, the base's
    weights that the policy is compared with at the end, and a checkpoint on its way to the disk; of sharded training,
    the gathered policy too."""

    @property
    def outputs(self) -> float:
        """What DVC keeps, once. Checkpoints are not of it; `dvc push` sends as much to a bucket."""
        embeddings = self.training_embeddings + self.evaluation_embeddings
        return embeddings + self.policies + self.image_bytes

    @property
    def disk(self) -> float:
        """Disk of a run with one training at a time, at most: outputs are in the workspace and in DVC's cache.

        `cache.type` is DVC's own, reflink or else copy: on ext4 both are whole, on XFS and Btrfs they share blocks. The
        clones of flow runs share files by hard links too, so that theirs are on the disk once.
        """
        return self.checkpoints + 2 * self.outputs


def checkpoint_bytes(settings: Settings, *, is_last: bool = False) -> float:
    """A checkpoint between iterations: trained weights (float32), the optimiser's state, and weight averages.

    The last one has no state of the optimiser, unless `train.keep_state` is set.
    """
    averages = max(averages_of(settings, variant) for variant in settings.params.variants)
    moments = 0 if is_last and not settings.params.train.keep_state else settings.optimizer_bytes
    return float((FLOAT32 + moments + FLOAT32 * averages) * settings.network.trained_weights)


def unfinished_bytes(settings: Settings, variant: str) -> float:
    """What a stop within an iteration adds: the trajectories of all processes, and predicted images to be scored."""
    return settings.processes * (trajectory_bytes(settings, variant) + predicted_bytes(settings, variant))


def policy_bytes(settings: Settings) -> float:
    """A saved policy: all weights in the checkpoint's type, or the adapter in float32."""
    element = FLOAT32 if settings.adapts else settings.element
    return float(element * settings.network.trained_weights)


def images_of(params: Params) -> int:
    """Evaluation images of all policies and modes."""
    return prompts_of(params).evaluated * params.generate.images_per_prompt * evaluated_sets(params)


def storage_of(settings: Settings) -> Storage:
    """Bytes and files of a run."""
    params, train, prompts = settings.params, settings.params.train, prompts_of(settings.params)
    best = 1 if train.heldout.keep_best else 0
    checkpoint, policy = checkpoint_bytes(settings), policy_bytes(settings)
    runs = len(params.variants) * len(train.seeds)
    kept_runs = runs if train.keep_state else 1
    pixels = params.generate.height * params.generate.width
    return Storage(
        training_embeddings=float(sum(encoded_for_training(params)) * settings.network.text_bytes),
        evaluation_embeddings=float(prompts.evaluated * settings.network.text_bytes),
        checkpoint=checkpoint,
        checkpoints=float((kept_runs * train.checkpoints_kept + 1) * (checkpoint + best * policy)),
        policy=policy,
        policies=float(runs * (1 + best) * policy),
        images=images_of(params),
        image_bytes=images_of(params) * pixels * PNG_BYTES,
        host=(PROCESS_BYTES + offloaded_bytes(settings) + _kept_base(settings) + settings.swapped_bytes)
        * settings.processes_each
        + checkpoint / (settings.machines if settings.shards and not settings.is_hybrid else 1)
        + (policy if settings.shards else 0.0),
    )


def _kept_base(settings: Settings) -> float:
    """The base's weights in a process, unless an adapter or a reference policy stands for them; see `BaseModel`."""
    if settings.adapts or all(settings.variant(name).has_reference for name in settings.params.variants):
        return 0.0
    return FLOAT32 * settings.network.trained_weights / settings.spread


def download_bytes(settings: Settings) -> float:
    """Weights from a hub: of the checkpoint in its type, unless it is a local folder, and of the counted scorers."""
    whole = settings.network.weights + settings.text.weights + settings.vae_weights
    base = 0 if Path(settings.model.name).is_dir() else settings.element * whole
    return base + scoring(settings.params, tuple(settings.params.scorers)).bytes
