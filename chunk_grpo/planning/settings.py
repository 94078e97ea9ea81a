"""The one place of this package that reads params.yaml: every other module takes these values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chunk_grpo.config import Params
from chunk_grpo.errors import ConfigError
from chunk_grpo.planning.models import Model
from chunk_grpo.planning.transformer import Adapter, Sequence2D, Tuning

ELEMENT = {"float32": 4, "bfloat16": 2}
"""Bytes of an element."""

BLOCK = 256
"""Values with a common scale in the moments of `adamw-8bit`."""


@dataclass(frozen=True)
class Settings:
    """What the formulas need of params.yaml.

    Attributes:
        params: The parameters, for what is a plain number there.
        model: Sizes of the checkpoint.
        gpus: GPUs at hand.
        machines: Machines that these are in.
        processes: GPUs that train together.
        tuning: Trained transformer.
        train_tokens: Tokens of an image of the rollouts.
        eval_tokens: Tokens of an evaluation image.
        element: Bytes of an element of the checkpoint and of the activations.
        rollout_batch: Trajectories in a pass of the rollout and of the held-out evaluation.
        micro_batch: Items in a pass of the update.
        guided: Evaluations of the network for a velocity of training: 2 with classifier-free guidance.
        guided_drawing: The same of an evaluation image.
        shards: Whether weights are spread over the processes.
        is_hybrid: Whether they are spread over the processes of each machine.
        autocasts: Whether passes of training run under autocast: all weights of a bfloat16 checkpoint are trained.
        optimizer_bytes: Bytes of the optimiser's state for each trained weight, a mean; AdamW keeps two float32.
        foreach_bytes: Bytes a trained weight that the optimiser's step takes for a moment: torch's foreach AdamW makes
            one float32 copy. Copies of one weight at a time are not counted.
    """

    params: Params
    model: Model
    gpus: int
    machines: int
    processes: int
    tuning: Tuning
    train_tokens: Sequence2D
    eval_tokens: Sequence2D
    element: int
    rollout_batch: int
    micro_batch: int
    guided: int
    guided_drawing: int
    shards: bool
    is_hybrid: bool
    autocasts: bool
    optimizer_bytes: float = 8.0
    foreach_bytes: int = 4

    @property
    def casts_weights(self) -> bool:
        """Whether autocast casts float32 weights for each product; shards are cast before they are gathered."""
        return self.autocasts and not self.shards

    @property
    def passes(self) -> int:
        """Passes of the network for a velocity of training."""
        return self.guided if self.params.model.cfg_passes == 2 else 1

    @property
    def processes_each(self) -> int:
        """GPUs of a machine that train."""
        return self.processes // self.machines

    @property
    def spread(self) -> int:
        """Number of processes that share one copy of the weights."""
        if not self.shards:
            return 1
        return self.processes_each if self.is_hybrid else self.processes

    @property
    def row_bytes(self) -> int:
        """Embeddings of a prompt: elements * bytes of the checkpoint's type."""
        return self.model.embedding_elements(self.params.model.max_sequence_length) * self.element


def settings_of(params: Params, model: Model, gpus: int, machines: int = 1) -> Settings:
    """Resolve params.yaml for a number of GPUs in a number of machines.

    Raises:
        ConfigError: The machines cannot share the images of an update.
    """
    train, text = params.train, params.model.max_sequence_length
    processes = processes_of(params, gpus, machines)
    adapter = (
        None if train.lora is None else Adapter.on(model.transformer, train.lora.rank, train.lora.targets)
    )
    tuning = Tuning(model.transformer, adapter, train.gradient_checkpointing)
    return Settings(
        params=params,
        model=model,
        gpus=gpus,
        machines=machines,
        processes=processes,
        tuning=tuning,
        train_tokens=Sequence2D(model.vae.tokens(params.model.height, params.model.width), text),
        eval_tokens=Sequence2D(model.vae.tokens(params.generate.height, params.generate.width), text),
        element=ELEMENT[params.model.dtype],
        rollout_batch=train.rollout_batch_size,
        micro_batch=train.micro_batch_size,
        guided=1 if params.sampling.cfg_scale == 1 else 2,
        guided_drawing=1 if params.generate.cfg_scale == 1 else 2,
        shards=train.shard_weights and processes > 1,
        is_hybrid=train.shard_weights and train.hybrid_sharding and machines > 1,
        autocasts=adapter is None and params.model.dtype != "float32",
        optimizer_bytes=moment_bytes(tuning) if train.optimizer == "adamw-8bit" else 8.0,
        foreach_bytes=4 if train.optimizer == "adamw" else 0,
    )


def moment_bytes(tuning: Tuning) -> float:
    """Bytes of `adamw-8bit`'s two moments for each trained weight, a mean.

    A byte, and 4 for each block of 256, where the rows of a matrix are whole blocks; else float32. Weights below 4096
    values, which are float32 too, count as the others.
    """
    quantised = sum(count * row for count, row in tuning.trained_rows() if row % BLOCK == 0)
    return 8.0 - quantised / max(1, tuning.trained_weights) * 2 * (4 - 1 - 4 / BLOCK)


def processes_of(params: Params, gpus: int, machines: int = 1) -> int:
    """GPUs that training uses: the largest number, equal in all machines, that divides the starts of an update.

    Variants with branches have fewer starts; the number here divides those of all variants. The launcher applies the
    same rule to each variant (stages/_launch/processes.py).

    Raises:
        ConfigError: The machines cannot share the starts.
    """
    share = shared_starts(params)
    if share % machines:
        raise ConfigError(
            f"--machines: must divide the {share} images of an update (with branches, divided by their children), got "
            f"{machines}; change train.prompts_per_iteration or train.group_size, or use fewer machines"
        )
    return max(count for count in range(machines, gpus + 1, machines) if share % count == 0)


def shared_starts(params: Params) -> int:
    """Greatest common divisor of the variants' starts of an update."""
    train = params.train
    prompts = max(1, train.prompts_per_iteration // train.updates_per_iteration)
    children = [1 if own.branching is None else own.branching.children for own in params.variants.values()]
    return prompts * math.gcd(*(train.group_size // count for count in children))
