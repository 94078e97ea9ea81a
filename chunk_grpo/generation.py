"""Evaluation images by mode. The noise of an image is the same for every policy and any order of work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chunk_grpo.core.hybrid import uses_base
from chunk_grpo.core.rollout import rollout_ode, sample_noise
from chunk_grpo.families.base import Family, velocity_function
from chunk_grpo.families.prompts import PromptSet, require_finite
from chunk_grpo.image_files import as_pictures
from chunk_grpo.seeding import derive_seed

Mode = Literal["base", "tuned", "hybrid"]

_TRAIN_AGAIN = "Train again with a lower learning rate."
_REMEDIES: dict[Mode, str] = {
    "base": "Check model.checkpoint, or set another model.dtype.",
    "tuned": _TRAIN_AGAIN,
    "hybrid": _TRAIN_AGAIN,
}
"""Next step for the user when the latents of a mode are not finite."""


@dataclass(frozen=True)
class GenerationSettings:
    """Settings of the evaluation images."""

    times: Tensor
    """Noise levels [S + 1] of the S ODE steps."""
    base_steps: int
    """Number of last steps that the base model takes in the mode hybrid (App. B.3)."""
    images_per_prompt: int
    """Images per prompt, each with its own noise."""
    batch_size: int
    """Images in one forward pass."""
    seed: int
    """Seed of the image noise. With prompt id and sample number it determines the noise of an image."""

    @property
    def num_steps(self) -> int:
        """Number of ODE steps, S."""
        return len(self.times) - 1


@dataclass(frozen=True)
class GeneratedImage:
    """One image."""

    mode: Mode
    """Mode of generation."""
    prompt_id: str
    """Id of the prompt."""
    sample: int
    """Number of the image within the prompt, from 0."""
    seed: int
    """Seed of this image's noise, from `image_seed`."""
    picture: NDArray[np.uint8]
    """uint8 [H, W, 3]."""


def image_seed(seed: int, prompt_id: str, sample: int) -> int:
    """Seed of an image's noise, the same for every policy and mode.

    Args:
        seed: Seed of all images.
        prompt_id: Id of the prompt.
        sample: Number of the image within the prompt, from 0.
    """
    return derive_seed("image", seed, prompt_id, sample)


def generate(
    base: Family,
    tuned: Callable[[], AbstractContextManager[Family]] | None,
    prompts: PromptSet,
    settings: GenerationSettings,
    drawn: Callable[[int], None] = lambda count: None,
    share: tuple[int, int] = (0, 1),
) -> Iterator[list[GeneratedImage]]:
    """Sample the images of all prompts, batch by batch.

    The trained policy first takes its steps of all batches. Its context is then left, and the base model finishes the
    mode "hybrid", so that only one of the two networks need be on the device. Latents wait in a temporary file.

    Args:
        base: Base model, which computes no velocity inside the context of `tuned`.
        tuned: Context of the trained policy; None: images of the base model alone.
        prompts: P prompts.
        settings: Sizes and seed.
        drawn: Called after each denoising step with the number of images that took it. An image takes `num_steps`
            steps; with `tuned` the base model takes `base_steps` more for the mode "hybrid".
        share: (k, N): every N-th batch from number k, for one of N processes.

    Yields:
        Images of one batch: in the mode "base", or in the modes "tuned" and "hybrid".

    Raises:
        DataError: A latent is not finite; the message names the prompt.
    """
    spans = batch_spans(prompts, settings)
    batches = [_Batch.of(span, prompts, settings) for span in spans[share[0] :: share[1]]]
    if tuned is None:
        for batch in batches:
            finals = batch.drawn_by(base, batch.noise(base), settings, drawn)[:, -1]
            yield _images(base, "base", batch, finals)
        return
    switch = sum(not uses_base(step, settings.num_steps, settings.base_steps) for step in range(settings.num_steps))
    with TemporaryFile() as file:
        kept = _Kept(file, sum(map(len, spans)), base.latent_shape)
        with tuned() as policy:
            for batch in batches:
                states = batch.drawn_by(policy, batch.noise(base), settings, drawn)
                _require_finite("tuned", batch, states[:, -1])
                kept.put(batch.span, states[:, [switch, -1]])
            del policy
        for batch in batches:
            at_switch, finals = kept.get(batch.span).to(base.device).unbind(dim=1)
            images = _images(base, "tuned", batch, finals)
            hybrid = batch.drawn_by(base, at_switch, settings, drawn, first_step=switch)[:, -1]
            yield images + _images(base, "hybrid", batch, hybrid)


@dataclass(frozen=True)
class _Batch:
    """Images of one forward pass."""

    span: range
    """Their places among all images."""
    prompts: PromptSet
    """Prompt of each image, B rows."""
    samples: list[int]
    """Number of each image within its prompt."""
    seeds: list[int]
    """Seed of each image's noise."""

    @classmethod
    def of(cls, span: range, prompts: PromptSet, settings: GenerationSettings) -> _Batch:
        """The images at `span`; the images of a prompt are consecutive."""
        count = settings.images_per_prompt
        rows, samples = [row // count for row in span], [row % count for row in span]
        seeds = [image_seed(settings.seed, prompts.ids[row], sample) for row, sample in zip(rows, samples, strict=True)]
        return cls(span, prompts.rows(rows), samples, seeds)

    def __len__(self) -> int:
        return len(self.span)

    def noise(self, family: Family) -> Tensor:
        """Initial noise [B, L, D]."""
        streams = [torch.Generator().manual_seed(seed) for seed in self.seeds]
        return sample_noise((len(self), *family.latent_shape), streams).to(family.device)

    def drawn_by(
        self,
        family: Family,
        start: Tensor,
        settings: GenerationSettings,
        drawn: Callable[[int], None],
        first_step: int = 0,
    ) -> Tensor:
        """States of the ODE from `start` [B, L, D] to the image, [B, steps + 1, L, D]; `drawn` as in `generate`."""
        velocity = velocity_function(family, self.prompts.conditioning.to(family.device))
        return rollout_ode(
            lambda step: velocity, start, settings.times, lambda step: drawn(len(self)), first_step=first_step
        )


def batch_spans(prompts: PromptSet, settings: GenerationSettings) -> list[range]:
    """Places of the images of each batch."""
    total, size = len(prompts) * settings.images_per_prompt, settings.batch_size
    return [range(first, min(first + size, total)) for first in range(0, total, size)]


class _Kept:
    """Latents of all images at the switch and at the end, in a file."""

    def __init__(self, file: IO[bytes], count: int, shape: tuple[int, int]) -> None:
        self._array = np.memmap(file, np.float32, "w+", shape=(count, 2, *shape))

    def put(self, span: range, latents: Tensor) -> None:
        """Store latents [B, 2, L, D]."""
        self._array[span.start : span.stop] = latents.float().cpu().numpy()

    def get(self, span: range) -> Tensor:
        """Stored latents [B, 2, L, D]."""
        return torch.from_numpy(np.array(self._array[span.start : span.stop]))


def _images(family: Family, mode: Mode, batch: _Batch, latents: Tensor) -> list[GeneratedImage]:
    """Decode final latents [B, L, D]."""
    _require_finite(mode, batch, latents)
    pictures = as_pictures(family.decode(latents).cpu().numpy())
    rows = zip(batch.prompts.ids, batch.samples, batch.seeds, pictures, strict=True)
    return [GeneratedImage(mode, *row) for row in rows]


def _require_finite(mode: Mode, batch: _Batch, latents: Tensor) -> None:
    require_finite(latents, batch.prompts, f"mode {mode}", _REMEDIES[mode])
