"""Evaluation images: which model takes which step, the same noise for every policy, whatever the order of work."""

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
"""What to do when the latents of a mode are not finite."""


@dataclass(frozen=True)
class GenerationSettings:
    """How evaluation images are sampled.

    Attributes:
        num_steps: ODE steps.
        shift: Of the time grid.
        base_steps: In the mode hybrid, the last of them, taken by the base model (App. B.3).
        images_per_prompt: Each from its own noise.
        batch_size: Images in one forward pass.
        seed: Of the noise; with prompt id and sample number it determines an image's start.
    """

    num_steps: int
    shift: float
    base_steps: int
    images_per_prompt: int
    batch_size: int
    seed: int


@dataclass(frozen=True)
class GeneratedImage:
    """One image: picture uint8 [H, W, 3], of the prompt's `sample`-th noise, whose seed is `seed`."""

    mode: Mode
    prompt_id: str
    sample: int
    seed: int
    picture: NDArray[np.uint8]


def image_seed(seed: int, prompt_id: str, sample: int) -> int:
    """The seed of an image's noise: the same for every policy and mode."""
    return derive_seed("image", seed, prompt_id, sample)


def generate(
    base: Family, tuned: Family | None, prompts: PromptSet, settings: GenerationSettings
) -> Iterator[list[GeneratedImage]]:
    """Sample every prompt's images, a batch at a time.

    Args:
        base: The base model.
        tuned: The trained policy, or None for images of the base model alone.
        prompts: What to draw.
        settings: How.

    Yields:
        The images of one batch: of the mode "base", or of the modes "tuned" and "hybrid".

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
        ).to(batch.conditioning.prompt_embeds.device)
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
    """Final latents by mode; hybrid goes on from the tuned run's state where the base model takes over."""
    times = time_grid(settings.num_steps, settings.shift)
    by_base = velocity_function(base, batch.conditioning)
    if tuned is None:
        yield "base", rollout_ode(lambda step: by_base, noise, times)[:, -1]
        return
    by_tuned = velocity_function(tuned, batch.conditioning)
    states = rollout_ode(lambda step: by_tuned, noise, times)
    yield "tuned", states[:, -1]
    switch = sum(
        not uses_base(step, settings.num_steps, settings.base_steps) for step in range(settings.num_steps)
    )
    yield "hybrid", rollout_ode(lambda step: by_base, states[:, switch], times, first_step=switch)[:, -1]


def _pictures(family: Family, latents: Tensor) -> NDArray[np.uint8]:
    """[B, H, W, 3]."""
    images = family.decode(latents).mul(255).round().to(torch.uint8)
    return images.permute(0, 2, 3, 1).cpu().numpy()
