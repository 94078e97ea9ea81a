"""The section `train` of params.yaml."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from chunk_grpo.config.policies import PolicyFiles
from chunk_grpo.config.section import BatchSize, ClipRange, Fraction, ImageCount, Section, Seed


class LoraParams(Section):
    """Low-rank adapters.

    Attributes:
        rank: rank of the adapters.
        alpha: numerator of the output scale, alpha / rank.
        targets: names of the adapted linear layers, or the last parts of dotted names.
    """

    rank: Annotated[int, Field(ge=1, le=4096)]
    alpha: PositiveFloat
    targets: Annotated[tuple[str, ...], Field(min_length=1)]


class ControllerParams(Section):
    """Answer to a held-out score that falls, in variants with `controlled: true`.

    Attributes:
        tolerance: fall below the best score that counts, in the scorer's unit.
        kl_coef: least KL coefficient after the first fall.
        kl_factor: factor of the KL coefficient at each fall.
        clip_factor: factor of the clip range at each fall.
        falls: number of falls after which training goes back to the best policy and continues; the next one ends it.
    """

    tolerance: NonNegativeFloat
    kl_coef: NonNegativeFloat
    kl_factor: Annotated[float, Field(ge=1, le=1000)]
    clip_factor: Fraction
    falls: Annotated[int, Field(ge=0, le=1000)]


class HeldoutParams(Section):
    """Evaluation during training on held-out prompts with fixed noise; detects reward hacking.

    Attributes:
        every: iterations between two measurements; the first and the last iteration are always measured.
        num_prompts: number of eval prompts.
        images_per_prompt: images per prompt, each from its own fixed noise.
        seed: seed of the fixed noise.
        scorers: scorers measured besides the training reward. The first one (without any: the reward) selects the best
            policy.
        patience: consecutive measurements without a new best after which training ends; null: no early end.
        keep_best: whether the best policy is saved besides the last one.
        controller: answer to a fall of the first scorer's score; null: none.
    """

    every: PositiveInt = 10
    num_prompts: PositiveInt = 48
    images_per_prompt: ImageCount = 1
    seed: Seed = 1000
    scorers: tuple[str, ...] = ()
    patience: PositiveInt | None = None
    keep_best: bool = False
    controller: ControllerParams | None = None

    @property
    def decides(self) -> bool:
        """Whether its scores can end training. Evaluation then leaves its prompts out."""
        return self.patience is not None or self.controller is not None


class TrainParams(Section):
    """Training settings shared by all variants.

    Attributes:
        seeds: training seeds; one training run per seed.
        iterations: rollouts of the policy.
        prompts_per_iteration: prompts per iteration over all devices, P.
        group_size: images per prompt, G.
        updates_per_iteration: optimiser steps per rollout, each on an equal share of the prompts.
        learning_rate: learning rate of AdamW.
        weight_decay: weight decay of AdamW.
        optimizer: `adamw`; `adamw-fused`: one kernel instead of several; `adamw-8bit`: moments of one byte a weight.
        max_grad_norm: upper bound of the gradient norm; larger gradients are scaled down.
        clip_range: clip range of the ratio, epsilon of Eq. (13).
        advantage_clip: bound of the advantages, which are clipped to [-advantage_clip, advantage_clip].
        kl_coef: KL coefficient, beta of Eq. (13).
        fraction: share of the chunks trained per sample and update.
        rollout_batch_size: images per forward pass of rollouts and held-out evaluations.
        micro_batch_size: (sample, step) items per forward and backward pass of an update, and images that rollouts and
            held-out evaluations decode together.
        same_noise_in_group: whether the images of a group start from the same noise.
        reward_in_background: whether a batch is scored while the next one is sampled.
        old_log_probs: source of the old log-probabilities in the ratios. `rollout`: saved during the rollout;
            `training`: recomputed in the update's batches, for low precision.
        reward_attempts: attempts to score a batch before training stops; it can be resumed.
        reward_wait: seconds before the second attempt; the wait doubles with each further attempt.
        start_from: saved policy with whose weights training starts; null: the base model. The reference of the KL
            divergence is the base model in both cases.
        lora: low-rank adapters to train instead of the full weights; null: train all weights.
        gradient_checkpointing: whether activations are recomputed in the backward pass instead of stored.
        offload: parts that are on the GPU only while images are decoded and scored, and else in the CPU's memory:
            `vae`, and `scorers`, the models of scorers in the stage's process.
        compile: whether the transformer's blocks are compiled by torch.compile in training.
        shard_weights: whether weights and optimiser state are sharded over the processes instead of replicated.
        hybrid_sharding: whether each machine keeps all shards, so that weights are gathered inside a machine; changes
            nothing on one machine or without `shard_weights`.
        cpu_processes: largest number of processes that share a training on a machine without GPUs; with more than 1
            each has one thread, and results do not depend on the number of cores. GPUs have one process each.
        ema_decay: decay of the moving average of the weights. The average is evaluated and saved; null: the last
            weights are.
        checkpoint_every: iterations between two checkpoints of the optimiser and the weights.
        checkpoints_kept: number of checkpoints kept, the newest ones.
        keep_state: whether the checkpoints are kept after training; a run with more `iterations` continues from them.
        heldout: evaluation on held-out prompts during training.
    """

    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    iterations: Annotated[int, Field(ge=1, le=1_000_000)]
    prompts_per_iteration: PositiveInt
    group_size: Annotated[int, Field(ge=2, le=10_000)]
    updates_per_iteration: PositiveInt
    learning_rate: PositiveFloat
    weight_decay: NonNegativeFloat = 1e-4
    optimizer: Literal["adamw", "adamw-fused", "adamw-8bit"] = "adamw"
    max_grad_norm: PositiveFloat = 1.0
    clip_range: ClipRange
    advantage_clip: PositiveFloat = 5.0
    kl_coef: NonNegativeFloat = 0.0
    fraction: Fraction = 0.5
    rollout_batch_size: BatchSize = 4
    micro_batch_size: BatchSize = 1
    same_noise_in_group: bool = False
    reward_in_background: bool = True
    old_log_probs: Literal["rollout", "training"] = "rollout"
    reward_attempts: PositiveInt = 3
    reward_wait: Annotated[float, Field(ge=0, le=86_400)] = 2.0
    start_from: PolicyFiles | None = None
    lora: LoraParams | None = None
    gradient_checkpointing: bool = False
    offload: tuple[Literal["vae", "scorers"], ...] = ()
    compile: bool = False
    shard_weights: bool = False
    hybrid_sharding: bool = False
    cpu_processes: Annotated[int, Field(ge=1, le=1024)] = 1
    ema_decay: Annotated[float, Field(ge=0, lt=1)] | None = None
    checkpoint_every: PositiveInt = 10
    checkpoints_kept: PositiveInt = 2
    keep_state: bool = False
    heldout: HeldoutParams
