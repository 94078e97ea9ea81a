"""Evaluation images by mode. The noise of an image is the same for every policy and any order of work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.hybrid import uses_base
from chunk_grpo.core.rollout import rollout_ode, sample_noise
from chunk_grpo.families.base import Family, velocity_function
from chunk_grpo.families.prompts import PromptSet, require_finite
from chunk_grpo.seeding import derive_seed

Mode = Literal["base", "tuned", "hybrid"]

_TRAIN_AGAIN = "Train again with a lower train.learning_rate."
_REMEDIES: dict[Mode, str] = {
    "base": "Check model.checkpoint, or set another model.dtype.",
    "tuned": _TRAIN_AGAIN,
    "hybrid": _TRAIN_AGAIN,
}
"""Next step for the user when the latents of a mode are not finite."""


@dataclass(frozen=True)
class GenerationSettings:
    """Settings of the evaluation images.

    Attributes:
        num_steps: Number of ODE steps.
        shift: Shift of the time grid.
        base_steps: Number of last steps that the base model takes in the mode hybrid (App. B.3).
        images_per_prompt: Images per prompt, each with its own noise.
        batch_size: Images in one forward pass.
        seed: Seed of the image noise. With prompt id and sample number it determines the noise of an image.
    """

    num_steps: int
    shift: float
    base_steps: int
    images_per_prompt: int
    batch_size: int
    seed: int


@dataclass(frozen=True)
class GeneratedImage:
    """One image.

    Attributes:
        mode: Mode of generation.
        prompt_id: Id of the prompt.
        sample: Number of the image within the prompt, from 0.
        seed: Seed of this image's noise, from `image_seed`.
        picture: uint8 [H, W, 3].
    """

    mode: Mode
    prompt_id: str
    sample: int
    seed: int
    picture: NDArray[np.uint8]


def image_seed(seed: int, prompt_id: str, sample: int) -> int:
    """Seed of an image's noise, the same for every policy and mode.

    Args:
        seed: Seed of all images.
        prompt_id: Id of the prompt.
        sample: Number of the image within the prompt, from 0.
    """
    return derive_seed("image", seed, prompt_id, sample)


def generate(
    base: Family, tuned: Family | None, prompts: PromptSet, settings: GenerationSettings
) -> Iterator[list[GeneratedImage]]:
    """Sample the images of all prompts, batch by batch.

    Args:
        base: Base model.
        tuned: Trained policy; None: images of the base model alone.
        prompts: P prompts.
        settings: Sizes and seed.

    Yields:
        Images of one batch: in the mode "base", or in the modes "tuned" and "hybrid".

    Raises:
        DataError: A latent is not finite; the message names the prompt.
    """
    rows = prompts.repeated(settings.images_per_prompt)
    for first in range(0, len(rows), settings.batch_size):
        span = range(first, min(first + settings.batch_size, len(rows)))
        batch = rows.rows(span)
        samples = [row % settings.images_per_prompt for row in span]
        seeds = [
            image_seed(settings.seed, name, sample) for name, sample in zip(batch.ids, samples, strict=True)
        ]
        noise = sample_noise(
            (len(span), *base.latent_shape), [torch.Generator().manual_seed(seed) for seed in seeds]
        ).to(base.device)
        images = []
        for mode, latents in _final_latents(base, tuned, batch, noise, settings):
            require_finite(latents, batch, f"mode {mode}", _REMEDIES[mode])
            images += [
                GeneratedImage(mode, name, sample, seed, picture)
                for name, sample, seed, picture in zip(
                    batch.ids, samples, seeds, _pictures(base, latents), strict=True
                )
            ]
        yield images


def _final_latents(
    base: Family, tuned: Family | None, batch: PromptSet, noise: Tensor, settings: GenerationSettings
) -> Iterator[tuple[Mode, Tensor]]:
    """Final latents [B, L, D] by mode. Hybrid continues from the tuned run's state at the switch to the base model.

    Args:
        base: Base model.
        tuned: Trained policy, or None.
        batch: Prompt of each image, B rows.
        noise: Initial noise [B, L, D].
        settings: Steps, shift and base steps.
    """
    times = time_grid(settings.num_steps, settings.shift)
    conditioning = batch.conditioning.to(base.device)
    by_base = velocity_function(base, conditioning)
    if tuned is None:
        yield "base", rollout_ode(lambda step: by_base, noise, times)[:, -1]
        return
    by_tuned = velocity_function(tuned, conditioning)
    states = rollout_ode(lambda step: by_tuned, noise, times)
    yield "tuned", states[:, -1]
    switch = sum(
        not uses_base(step, settings.num_steps, settings.base_steps) for step in range(settings.num_steps)
    )
    yield "hybrid", rollout_ode(lambda step: by_base, states[:, switch], times, first_step=switch)[:, -1]


def _pictures(family: Family, latents: Tensor) -> NDArray[np.uint8]:
    """Decode latents [B, L, D] to uint8 pictures [B, H, W, 3]."""
    images = family.decode(latents).mul(255).round().to(torch.uint8)
    return images.permute(0, 2, 3, 1).cpu().numpy()
