"""The section `train` of params.yaml."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from chunk_grpo.config.section import BatchSize, ClipRange, Fraction, ImageCount, Section, Seed


class LoraParams(Section):
    """Low-rank adapters.

    Attributes:
        rank: of the adapters.
        alpha: their output is scaled by alpha / rank.
        targets: names of linear layers, or ends of names after a dot.
    """

    rank: Annotated[int, Field(ge=1, le=4096)]
    alpha: PositiveFloat
    targets: Annotated[tuple[str, ...], Field(min_length=1)]


class HeldoutParams(Section):
    """Held-out prompts with fixed noise, drawn and scored while training: does it still help, or is it hacked?

    Attributes:
        every: iterations between two measurements; the first and the last iteration are always measured.
        num_prompts: eval prompts used.
        images_per_prompt: images, each from its own fixed noise.
        seed: of that noise.
        scorers: measured besides the training reward; the first of them, or else the reward, tells the best.
        patience: measurements in a row without a new best that end training early; null never does.
        keep_best: whether the best policy is kept beside the last.
    """

    every: PositiveInt
    num_prompts: PositiveInt
    images_per_prompt: ImageCount
    seed: Seed
    scorers: tuple[str, ...]
    patience: PositiveInt | None
    keep_best: bool


class TrainParams(Section):
    """Training, alike for all variants.

    Attributes:
        seeds: one training run each.
        iterations: rollouts of the policy.
        prompts_per_iteration: P, over all devices.
        group_size: G images per prompt.
        updates_per_iteration: optimiser steps per rollout, each on its share of the prompts.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
        max_grad_norm: the gradient's norm is clipped to this.
        clip_range: epsilon of Eq. (13).
        advantage_clip: advantages are clipped to plus and minus this.
        kl_coef: beta of Eq. (13).
        fraction: share of the chunks (of the steps, for the step objective) trained per sample and update.
        micro_batch_size: (sample, step) items per forward and backward pass.
        same_noise_in_group: whether the images of a group start from one noise.
        reward_in_background: whether a batch is scored while the next one is drawn.
        old_log_probs: `rollout` keeps those of the rollout for the ratios; `training` evaluates them again in the
            update's batches, for low precision.
        reward_attempts: how often a scorer that fails is tried before training stops, to go on later.
        reward_wait: seconds before the second attempt; twice as long before each further one.
        lora: train low-rank adapters instead of all weights; null trains all.
        gradient_checkpointing: whether activations are computed again in the backward pass instead of kept.
        shard_weights: whether several processes keep a part each of the weights and of the optimiser's state, instead
            of all of them.
        ema_decay: of the moving average of the weights, which is what is watched and kept; null keeps the last ones.
        checkpoint_every: iterations between two checkpoints of the optimiser and the weights.
        checkpoints_kept: how many of them are kept.
        heldout: the measurement on held-out prompts.
    """

    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    iterations: Annotated[int, Field(ge=1, le=1_000_000)]
    prompts_per_iteration: PositiveInt
    group_size: Annotated[int, Field(ge=2, le=10_000)]
    updates_per_iteration: PositiveInt
    learning_rate: PositiveFloat
    weight_decay: NonNegativeFloat
    max_grad_norm: PositiveFloat
    clip_range: ClipRange
    advantage_clip: PositiveFloat
    kl_coef: NonNegativeFloat
    fraction: Fraction
    micro_batch_size: BatchSize
    same_noise_in_group: bool
    reward_in_background: bool
    old_log_probs: Literal["rollout", "training"]
    reward_attempts: PositiveInt
    reward_wait: Annotated[float, Field(ge=0, le=86_400)]
    lora: LoraParams | None
    gradient_checkpointing: bool
    shard_weights: bool
    ema_decay: Annotated[float, Field(ge=0, lt=1)] | None
    checkpoint_every: PositiveInt
    checkpoints_kept: PositiveInt
    heldout: HeldoutParams
