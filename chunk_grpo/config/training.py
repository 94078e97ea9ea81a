"""The section `train` of params.yaml."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from chunk_grpo.config.policies import PolicyFiles
from chunk_grpo.config.section import BatchSize, ClipRange, Fraction, ImageCount, Section, Seed, Share


class LoraParams(Section):
    """Low-rank adapters."""

    rank: Annotated[int, Field(ge=1, le=4096)]
    """Rank of the adapters."""
    alpha: PositiveFloat
    """Numerator of the scale of the adapter's output, alpha / rank."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of the adapted linear layers, or their ends after a dot."""
    precision: Literal["float32", "network"] = "float32"
    """Type in which the adapter computes in training; its weights are float32. `float32`; `network`: the type of the
    network, so that a layer's input and output are not cast."""


class ControllerParams(Section):
    """Answer to a held-out score that falls, in variants with `controlled: true`."""

    tolerance: NonNegativeFloat
    """Fall below the best score that counts, in the scorer's unit."""
    kl_coef: NonNegativeFloat
    """Least KL coefficient after the first fall."""
    kl_factor: Annotated[float, Field(ge=1, le=1000)]
    """Factor of the KL coefficient at each fall."""
    clip_factor: Fraction
    """Factor of the clip range at each fall."""
    falls: Annotated[int, Field(ge=0, le=1000)]
    """Number of falls after which training goes back to the best policy and continues; the next one ends it."""


class HeldoutParams(Section):
    """Evaluation during training on held-out prompts with fixed noise; detects reward hacking."""

    every: PositiveInt = 10
    """Iterations between two measurements; the first and the last iteration are always measured."""
    num_prompts: PositiveInt = 48
    """Number of eval prompts, at most `prompts.eval_count`. Source: toy."""
    images_per_prompt: ImageCount = 1
    """Images per prompt, each from its own fixed noise. Source: toy."""
    seed: Seed = 1000
    """Seed of the fixed noise."""
    scorers: tuple[str, ...] = ()
    """Names in `scorers`, none of `rewards`, each once: those measured besides the training reward. The first one
    (without any: the reward) selects the best policy."""
    patience: PositiveInt | None = None
    """Consecutive measurements without a new best after which training ends; null: no early end."""
    keep_best: bool = False
    """Whether the best policy is saved besides the last one."""
    controller: ControllerParams | None = None
    """Answer to a fall of the first scorer's score, in variants with `controlled: true`; null: none."""

    @property
    def decides(self) -> bool:
        """Whether its scores can end training. Evaluation then leaves its prompts out."""
        return self.patience is not None or self.controller is not None


class TrainParams(Section):
    """Training settings shared by all variants."""

    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    """Training seeds, each once; one training run per seed."""
    iterations: Annotated[int, Field(ge=1, le=1_000_000)]
    """Rollouts of the policy. Source: toy; Table 6: 150."""
    prompts_per_iteration: PositiveInt
    """Prompts per iteration over all devices, P; a multiple of `updates_per_iteration`, at most `prompts.train_count`.
    Source: toy; Table 6: 2 on each of 8 GPUs."""
    group_size: Annotated[int, Field(ge=2, le=10_000)]
    """Images per prompt, G. Source: toy; Table 6: 12."""
    updates_per_iteration: PositiveInt
    """Optimiser steps per rollout, each on an equal share of the prompts. Source: toy; Table 6: 24 images a GPU,
    accumulated over 12."""
    learning_rate: PositiveFloat
    """Learning rate of AdamW. Source: toy; Table 6: 1e-5."""
    weight_decay: NonNegativeFloat = 1e-4
    """Weight decay of AdamW. Source: Table 6."""
    optimizer: Literal["adamw", "adamw-fused", "adamw-8bit"] = "adamw"
    """Kind of AdamW. `adamw`; `adamw-fused`: one kernel instead of several; `adamw-8bit`: moments of one byte a weight.
    Source: Table 6: AdamW."""
    max_grad_norm: PositiveFloat = 1.0
    """Upper bound of the gradient norm; larger gradients are scaled down. Source: toy; Table 6: 0.01."""
    clip_range: ClipRange
    """Clip range of the ratio, epsilon of Eq. (13). Source: toy; Table 6: 5e-5."""
    advantage_clip: PositiveFloat = 5.0
    """Bound of the advantages, in standard deviations; they are clipped to [-advantage_clip, advantage_clip]. Source:
    DanceGRPO's code."""
    kl_coef: NonNegativeFloat = 0.0
    """KL coefficient, beta of Eq. (13). Source: DanceGRPO's code."""
    fraction: Fraction = 0.5
    """Share of the chunks trained per sample and update; int(chunks * fraction) must be at least 1. Source: Table 6."""
    rollout_batch_size: BatchSize = 4
    """Images per forward pass of rollouts and held-out evaluations. The last digits apart, does not affect results."""
    micro_batch_size: BatchSize = 1
    """(sample, step) items per forward and backward pass of an update, and images that rollouts and held-out
    evaluations decode together. The last digits apart, does not affect results."""
    same_noise_in_group: bool = False
    """Whether the images of a group start from the same noise. Source: ours; DanceGRPO's code shares one noise."""
    reward_in_background: bool = True
    """Whether a batch is scored while the next one is sampled. Does not affect results."""
    old_log_probs: Literal["rollout", "training"] = "rollout"
    """Source of the old log-probabilities in the ratios. `rollout`: saved during the rollout; `training`: recomputed
    in the update's batches, for low precision."""
    reward_away_seconds: Annotated[float, Field(ge=0, le=86_400)] = 900.0
    """Seconds for which a scorer may be away. It is asked again after growing waits; then training saves what it has
    done, the iteration in progress included, and stops."""
    start_from: PolicyFiles | None = None
    """Saved policy with whose weights training starts; null: the base model. The reference of the KL divergence is
    the base model in both cases."""
    lora: LoraParams | None = None
    """Low-rank adapters to train instead of the full weights; null: train all weights."""
    gradient_checkpointing: bool | Share = False
    """Whether the backward pass recomputes activations instead of storing them; a number: in this share of the blocks.
    `chunk-grpo plan` names a smaller share that fits, of 0.25, 0.5 and 0.75. Does not affect results. Source: ours;
    DanceGRPO's code: true."""
    offload: tuple[Literal["vae", "scorers"], ...] = ()
    """Parts, each once, that are on the GPU only while images are decoded and scored, and else in the CPU's memory:
    `vae`, and `scorers`, the models of scorers in the stage's process. Does not affect results."""
    guidance_gradient: Literal["both", "conditional"] = "both"
    """Velocities of classifier-free guidance that have a gradient. `both`; `conditional`: the prompt's; the negative
    prompt's is a constant, and with `model.cfg_passes: 2` its pass takes no activations and no backward pass.
    Source: TempFlow-GRPO's code; flow_grpo's: `conditional`."""
    compile: bool | Literal["auto"] = "auto"
    """Whether the transformer's blocks are compiled by torch.compile in training. `auto`: on a GPU on which torch
    compiles a small function when training starts, and not beside `model.base_precision` and `model.block_swap`."""
    shard_weights: bool = False
    """Whether weights and optimiser state are sharded over the processes (FSDP2) instead of replicated."""
    hybrid_sharding: bool = False
    """Whether each machine keeps all shards (HSDP): weights are gathered inside a machine, and gradients are averaged
    between machines. Changes nothing on one machine or without `shard_weights`."""
    cpu_processes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Largest number of processes that share a training on a machine without GPUs, fewer where an update cannot be
    divided evenly; with more than 1 each has one thread, and results do not depend on the number of cores. GPUs have
    one process each."""
    ema_decay: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Decay of the moving average of the weights. The average is evaluated and saved; null: the last weights are.
    Source: ours; released code: 0.995, an option."""
    ema_warmup: bool = False
    """Whether the decay begins small, min((1 + k) / (10 + k), ema_decay) after k updates, so that the average soon
    forgets the initial weights. Source: flow_grpo's and DiffusionNFT's code: true."""
    checkpoint_every: PositiveInt | None = 10
    """Iterations between two checkpoints of the optimiser and the weights; null: `checkpoint_minutes` alone decides. A
    stop and the end save one in any case."""
    checkpoint_minutes: PositiveFloat | None = None
    """Minutes after a checkpoint at which the next one is due too: it is saved at the end of the iteration; null:
    `checkpoint_every` alone decides."""
    checkpoints_kept: PositiveInt = 2
    """Number of checkpoints kept, the newest ones."""
    keep_state: bool = False
    """Whether the checkpoints are kept after training; a run with more `iterations` continues from them."""
    heldout: HeldoutParams
    """Evaluation on held-out prompts during training."""
