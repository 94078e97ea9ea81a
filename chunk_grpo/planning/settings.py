"""The one place of this package that reads params.yaml: every other module takes these values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from chunk_grpo.config import Params
from chunk_grpo.config.models import BasePrecision
from chunk_grpo.config.prompt_rules import edits
from chunk_grpo.config.resolved import ResolvedVariant, resolved_variant
from chunk_grpo.errors import ConfigError
from chunk_grpo.families.tracing import (
    Checkpoint,
    Decoding,
    NetworkSizes,
    PassSizes,
    TextSizes,
    Traced,
    decoding,
    network_sizes,
    pass_sizes,
    text_bytes,
    text_sizes,
    vae_weights,
)
from chunk_grpo.planning.dry_run import IterationCounts, count_iteration
from chunk_grpo.training.learner import tuning_of
from chunk_grpo.training.schedule import starts_of_update

ELEMENT = {"float32": 4, "bfloat16": 2}
"""Bytes of an element."""

BLOCK = 256
"""Values with a common scale in the moments of `adamw-8bit`."""


@dataclass(frozen=True)
class Settings:
    """What the formulas need of params.yaml."""

    params: Params
    """The parameters, for what is a plain number there."""
    model: Checkpoint
    gpus: int
    """GPUs at hand."""
    machines: int
    """Machines that these are in."""
    processes: int
    """GPUs that train together."""
    network: NetworkSizes
    """Sizes of the trained network, at the size of the rollouts' images."""
    traced: Traced
    """A velocity of training, as it is traced."""
    element: int
    """Bytes of an element of the checkpoint and of the activations."""
    rollout_batch: int
    """Trajectories in the largest pass of the rollout and of the held-out evaluation."""
    micro_batch: int
    """Items in a pass of the update."""
    guided: int
    """Evaluations of the network for a velocity of training: 2 with classifier-free guidance."""
    shards: bool
    """Whether weights are spread over the processes."""
    is_hybrid: bool
    """Whether they are spread over the processes of each machine."""
    optimizer_bytes: float = 8.0
    """Bytes of the optimiser's state for each trained weight, a mean; AdamW keeps two float32."""
    foreach_bytes: int = 4
    """Bytes a trained weight that the optimiser's step takes for a moment: torch's foreach AdamW makes one float32
    copy. Copies of one weight at a time are not counted."""

    def variant(self, name: str) -> ResolvedVariant:
        """A variant with the values of `train` and `sampling`."""
        return resolved_variant(self.params, name)

    def counts(self, variant: str) -> IterationCounts:
        """States and passes of an iteration of one process."""
        return count_iteration(self.params, variant, self.processes)

    @property
    def passes(self) -> int:
        """Passes of the network for a velocity of training."""
        return self.guided if self.params.model.cfg_passes == 2 else 1

    @property
    def backward_passes(self) -> int:
        """Passes of an update's velocity that have a backward pass."""
        return 1 if self.params.train.guidance_gradient == "conditional" else self.passes

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
    def adapts(self) -> bool:
        """Whether an adapter is trained instead of all weights."""
        return self.params.train.lora is not None

    @property
    def swapped_bytes(self) -> float:
        """Weights of swapped blocks, which stay in the CPU's memory. All of a block's count as linear layers."""
        return self.params.model.block_swap * self.element * (self.network.weights - self.network.outer_weights)

    @property
    def copied_bytes(self) -> float:
        """Copies that are on the GPU at once, at most: a whole block's, the largest one's, while it is recomputed."""
        largest = max((unit.weights for unit in self.network.units.values()), default=0)
        return min(self.swapped_bytes, float(self.element * largest))

    @property
    def spared_bytes(self) -> float:
        """What block swap takes off the GPU."""
        return self.swapped_bytes - self.copied_bytes

    @property
    def rollout(self) -> PassSizes:
        """Velocities of `rollout_batch` images, without gradients, so that no block is recomputed."""
        tuning = self.traced.tuning and replace(self.traced.tuning, gradient_checkpointing=False)
        return pass_sizes(replace(self.traced, images=self.rollout_batch, tuning=tuning), backward=False)

    @property
    def update(self) -> PassSizes:
        """Velocities of `micro_batch` items, and their backward pass."""
        share, batch = self.params.train.gradient_checkpointing, replace(self.traced, images=self.micro_batch)
        if isinstance(share, bool) or batch.tuning is None:
            return pass_sizes(batch, backward=True)
        stored, recomputed = (
            pass_sizes(replace(batch, tuning=replace(batch.tuning, gradient_checkpointing=each)), backward=True)
            for each in (False, True)
        )
        return stored.mixed(recomputed, share, sum(unit.count for unit in self.network.units.values()))

    @property
    def update_flop(self) -> float:
        """Operations of a micro-batch: forward and backward pass, with recomputation."""
        one = self.update
        return one.forward + one.backward + one.recomputed

    def swapping(self, share: float) -> Settings:
        """The same with another `model.block_swap`."""
        model = self.params.model.model_copy(update={"block_swap": share})
        return replace(self, params=self.params.model_copy(update={"model": model}))

    def recomputing(self, share: bool | float) -> Settings:
        """The same with another `train.gradient_checkpointing`."""
        train = self.params.train.model_copy(update={"gradient_checkpointing": share})
        params = self.params.model_copy(update={"train": train})
        tuning = self.traced.tuning and replace(self.traced.tuning, gradient_checkpointing=share)
        return replace(self, params=params, traced=replace(self.traced, tuning=tuning))

    @property
    def forward_flop(self) -> float:
        """Operations of a velocity of training."""
        return self.rollout.forward / self.rollout_batch

    @property
    def frozen_flop(self) -> float:
        """The same without an adapter."""
        if not self.adapts:
            return self.forward_flop
        return pass_sizes(replace(self.traced, images=1, tuning=None), backward=False).forward

    @property
    def drawing(self) -> PassSizes:
        """Velocities of a batch of evaluation images, without an adapter."""
        return pass_sizes(self._drawn, backward=False)

    @property
    def drawn_flop(self) -> float:
        """Operations of a velocity of an evaluation image."""
        return self.drawing.forward / self._drawn.images

    @property
    def drawn_tokens(self) -> int:
        """Tokens of an evaluation image and its prompt."""
        sizes = network_sizes(self._drawn)
        return sizes.latent_shape[0] + sizes.text_tokens

    @property
    def decoded(self) -> Decoding:
        """Decoding of a group of images in training."""
        return decoding(replace(self._plain, images=self.decoded_images))

    @property
    def decoded_images(self) -> int:
        """Images of the rollout that are decoded at once."""
        return min(self.rollout_batch, self.micro_batch)

    @property
    def drawn_decoded(self) -> Decoding:
        """Decoding of a batch of evaluation images."""
        return decoding(replace(self._drawn, cfg_scale=1.0))

    @property
    def vae_weights(self) -> int:
        """Weights of the VAE."""
        return vae_weights(self.model)

    @property
    def text(self) -> TextSizes:
        """Weights of the text encoders."""
        return text_sizes(self.model)

    def text_bytes(self, precision: BasePrecision | None) -> int:
        """Bytes of the text encoders with this `model.text_precision`."""
        return text_bytes(self.model, self.params.model.dtype, precision)

    @property
    def latent_bytes(self) -> int:
        """Latents of an image, float32."""
        return 4 * math.prod(self.network.latent_shape)

    @property
    def _plain(self) -> Traced:
        return replace(self.traced, tuning=None, gathers=False, cfg_scale=1.0)

    @property
    def _drawn(self) -> Traced:
        drawn = self.params.generate
        return replace(
            self._plain, height=drawn.height, width=drawn.width, images=drawn.batch_size, cfg_scale=drawn.cfg_scale
        )


def settings_of(params: Params, model: Checkpoint, gpus: int, machines: int = 1) -> Settings:
    """Resolve params.yaml for a number of GPUs in a number of machines.

    What would fail in the run is refused: machines that cannot share the images of an update, an image size that does
    not fit the checkpoint, `train.lora.targets` that name no layer, a configuration that makes no network, a family
    that does not edit the prompts' pictures or only edits.
    """
    train = params.train
    processes = processes_of(params, gpus, machines)
    shards = train.shard_weights and processes > 1
    traced = Traced(
        checkpoint=model,
        element=params.model.dtype,
        height=params.model.height,
        width=params.model.width,
        tokens=params.model.max_sequence_length,
        source=(params.model.height, params.model.width) if edits(params.prompts) else None,
        cfg_scale=params.sampling.cfg_scale,
        cfg_passes=params.model.cfg_passes,
        tuning=replace(tuning_of(train), compiles=False),
        precision=params.model.base_precision,
        gathers=shards,
    )
    network = network_sizes(traced)
    return Settings(
        params=params,
        model=model,
        gpus=gpus,
        machines=machines,
        processes=processes,
        network=network,
        traced=traced,
        element=ELEMENT[params.model.dtype],
        rollout_batch=min(train.rollout_batch_size, _most_trajectories(params, processes)),
        micro_batch=train.micro_batch_size,
        guided=1 if params.sampling.cfg_scale == 1 else 2,
        shards=shards,
        is_hybrid=train.shard_weights and train.hybrid_sharding and machines > 1,
        optimizer_bytes=moment_bytes(network) if train.optimizer == "adamw-8bit" else 8.0,
        foreach_bytes=4 if train.optimizer == "adamw" else 0,
    )


def heldout_images(params: Params) -> int:
    """Images of a held-out evaluation."""
    held = params.train.heldout
    return min(held.num_prompts, params.prompts.eval_count) * held.images_per_prompt


def _most_trajectories(params: Params, processes: int) -> int:
    """Trajectories of a process, in an iteration or in a held-out evaluation."""
    sampled = params.train.prompts_per_iteration * params.train.group_size
    return math.ceil(max(sampled, heldout_images(params)) / processes)


def moment_bytes(network: NetworkSizes) -> float:
    """Bytes of `adamw-8bit`'s two moments for each trained weight, a mean.

    A byte, and 4 for each block of 256, where the rows of a matrix are whole blocks; else float32.
    """
    quantised = sum(values for row, values in network.trained_rows.items() if row % BLOCK == 0)
    return 8.0 - quantised / max(1, network.trained_weights) * 2 * (4 - 1 - 4 / BLOCK)


def processes_of(params: Params, gpus: int, machines: int = 1) -> int:
    """GPUs that training uses: the largest number, equal in all machines, that divides the starts of an update.

    Variants with branches have fewer starts; the number here divides those of all variants. The launcher applies the
    same rule to each variant (stages/_launch/processes.py). Machines that cannot share the starts are refused.
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
    return math.gcd(*(starts_of_update(params.train, own.branching) for own in params.variants.values()))
