"""A training: what it learns from, what names it, and the policy that it writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save

from chunk_grpo.artifacts import Location
from chunk_grpo.artifacts.kept import add_files
from chunk_grpo.code import add_code
from chunk_grpo.config import TrainParams, VariantParams
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.library.checkpoint import Checkpoint
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.stopping import STOP
from chunk_grpo.training.method import Method
from chunk_grpo.training.metrics import MetricRow, finite_rows
from chunk_grpo.training.run import RunPaths, TrainingData
from chunk_grpo.training.trainer import Trainer

COMPUTES = (
    "chunk_grpo/core",
    "chunk_grpo/families",
    "chunk_grpo/image_files.py",
    "chunk_grpo/library/checkpoint.py",
    "chunk_grpo/library/runs.py",
    "chunk_grpo/library/stored_prompts.py",
    "chunk_grpo/scorers/base.py",
    "chunk_grpo/scorers/reward.py",
    "chunk_grpo/scorers/running",
    "chunk_grpo/seeding.py",
    "chunk_grpo/training",
    "stages/train.py",
)
"""Code that decides what a training computes. The code of single scorers is in their specs."""

MOVES_NOTHING = {"checkpoint_every", "checkpoint_minutes", "checkpoints_kept", "keep_state", "reward_away_seconds"}
"""Settings of `train` that change no state of a training."""


def moving_settings(train: TrainParams, variant: VariantParams) -> dict[str, Any]:
    """Settings of `train`, but `seeds`, on which the state of a training at an iteration depends.

    The number of iterations is one of them with annealed selection, and where held-out scores select a policy: the last
    iteration is measured even if it is not due.
    """
    heldout = train.heldout
    counts = variant.selection == "annealed" or heldout.decides or heldout.keep_best
    return train.model_dump(mode="json", exclude={"seeds"} | MOVES_NOTHING | (set() if counts else {"iterations"}))


def resume_key(content: Any, files: Iterable[Location] = (), embedded: Iterable[PromptSet] = ()) -> str:
    """Digest of a training: a checkpoint is resumed only with the same code, settings and inputs.

    Of `files` the content counts, of `embedded` the embeddings.
    """
    digest = hashlib.sha256(json.dumps(content, default=str).encode())
    add_code(digest, *COMPUTES)
    add_files(digest, files)
    for prompts in embedded:
        tensors = prompts.conditioning.to("cpu").tensors
        digest.update(save({name: tensor.contiguous() for name, tensor in sorted(tensors.items())}))
    return digest.hexdigest()[:16]


def training_data(
    prompts: PromptSet,
    heldout: PromptSet,
    scorers: Mapping[str, Scorer],
    rewards: Mapping[str, float],
    train: TrainParams,
) -> TrainingData:
    """What a training learns from: `rewards` has the weight of each scorer, `train.heldout` the unseen scorers."""

    def reward(weights: Mapping[str, float]) -> Reward:
        return Reward(scorers, weights, train.reward_away_seconds)

    unseen = dict.fromkeys(train.heldout.scorers, 1.0)
    return TrainingData(prompts, heldout, reward(rewards), reward(unseen) if unseen else None)


def trained(
    checkpoint: Checkpoint,
    data: TrainingData,
    method: Method,
    train: TrainParams,
    seed: int,
    paths: RunPaths,
    out: Path,
    began: Callable[[], None] = lambda: None,
) -> list[MetricRow]:
    """Train, or go on from the newest checkpoint; write the policy, and the best one if it is kept, to `out`.

    `began` is called when the model, and the policy to start from, are loaded. Returns the finite metrics. Raises what
    `Trainer` raises.
    """
    trainer = Trainer(checkpoint.loaded("transformer"), data, method, train, seed, paths)
    began()
    metrics = finite_rows(trainer.run(lambda: STOP.requested))
    trainer.save_policies(out)
    return metrics
