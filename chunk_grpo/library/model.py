"""A checkpoint whose parts are loaded when they are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chunk_grpo.config.models import ModelParams, SamplingParams
from chunk_grpo.families.base import Conditioning, Family, Picture, release_memory
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.image_files import fitted
from chunk_grpo.library.checkpoint import Checkpoint
from chunk_grpo.library.encoding import encoded, negative_of
from chunk_grpo.library.profiles import profiled
from chunk_grpo.library.settings import checked
from chunk_grpo.library.times import times_of
from chunk_grpo.parallel import Workers


class Model(Checkpoint):
    """A pipeline's checkpoint. `load` makes it."""

    _base: Family | None = None

    @property
    def base(self) -> Family:
        """The base model, with its velocity network and its decoder; loaded at the first use."""
        if self._base is None:
            self._base = self.loaded("transformer", "vae")
        return self._base

    def release(self) -> None:
        """Free the base model; the next use loads it again."""
        self._base = None
        release_memory()

    def encode(
        self,
        texts: Sequence[str],
        metadata: Sequence[Mapping[str, object]] | None = None,
        batch_size: int = 8,
        pictures: Sequence[Picture] | None = None,
    ) -> PromptSet:
        """Encode prompts. The text encoders are loaded and freed again, before the base model is needed.

        Args:
            texts: P prompts. Equal texts are different prompts, each with its own noise.
            metadata: A record for each prompt, which rewards get; None: empty ones.
            batch_size: Prompts per call of the text encoders.
            pictures: The picture uint8 [H, W, 3] that each prompt says how to edit, resized to the model's images; of
                another ratio, both ends are cut. None: the prompts draw new images.

        Returns:
            The prompts with their embeddings, on the CPU; `rows` selects some of them.

        Raises:
            DataError: The checkpoint is missing, broken or of another family.
            ConfigError: The family edits no pictures, or only edits.
            ValueError: There are no prompts, or another number of records or pictures.
        """
        records: Sequence[Mapping[str, object]] = [{} for _ in texts] if metadata is None else metadata
        if not texts or len(records) != len(texts):
            raise ValueError(f"needs prompts and a record for each, got {len(texts)} and {len(records)}")
        if pictures is not None and len(pictures) != len(texts):
            raise ValueError(f"needs a picture for each of {len(texts)} prompts, got {len(pictures)}")
        size = self.settings.height, self.settings.width
        edited = None if pictures is None else [partial(fitted, each, *size) for each in pictures]
        self.release()
        family = self.loaded("text")
        away = None if self.cfg_scale == 1 else self.settings.negative_prompt
        parts = list(encoded(family, texts, batch_size, Workers.alone(), edited, away))
        negative = None if away is None else negative_of(family, away)
        del family
        release_memory()
        tensors = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        ids = [f"{number:05d}" for number in range(len(texts))]
        return PromptSet(ids, list(texts), records, Conditioning(tensors, negative), edited)

    def sampling(self, num_steps: int, shift: float | None, **settings: Any) -> SamplingParams:
        """Sampler of the training rollouts and of the profile.

        Args:
            num_steps: Number of sampling steps, T.
            shift: Shift of the time grid; None: the grid of diffusers' pipeline.
            **settings: `sde` and `eta`, as in params.yaml.

        Raises:
            ConfigError: A setting is unknown or wrong.
        """
        values = {"num_steps": num_steps, "shift": shift, "cfg_scale": self.cfg_scale, **settings}
        return checked(SamplingParams, values, "sampling")

    def times(self, num_steps: int, shift: float | None) -> Tensor:
        """Noise levels [S + 1] of a time grid; without a shift that of diffusers' pipeline."""
        return times_of(num_steps, shift, lambda: self.base)

    def profile(self, prompts: PromptSet, sampling: SamplingParams, seeds: int = 2, batch_size: int = 8) -> list[float]:
        """Mean relative L1 distance of each noisy step under the SDE, Eq. (15).

        Args:
            prompts: P prompts; a few dozen are enough.
            sampling: Sampler of the rollouts.
            seeds: Noises of each prompt.
            batch_size: Trajectories per forward pass.

        Returns:
            T - 1 values, for `train`.

        Raises:
            DataError: A latent is not finite.
        """
        curves = profiled(self.base, prompts, range(seeds), sampling, batch_size, Workers.alone(), with_ode=False)
        found = torch.cat([each.distances["sde"] for each in curves])
        mean: list[float] = found.mean(dim=0)[: sampling.num_sde_steps].tolist()
        return mean


def load(
    checkpoint: str,
    *,
    height: int,
    width: int,
    max_sequence_length: int,
    family: str = "flux",
    dtype: str = "float32",
    cfg_scale: float = 1.0,
    **settings: Any,
) -> Model:
    """A checkpoint in the layout of diffusers' pipelines. Its parts are loaded when they are needed.

    Args:
        checkpoint: Folder, or hub id with `revision`.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
        max_sequence_length: Number of tokens of the longer text encoder.
        family: A family of docs/families.md, or a module of yours.
        dtype: "float32" or "bfloat16", type of the weights.
        cfg_scale: Scale of classifier-free guidance; 1: none.
        **settings: Other keys of the section `model` of params.yaml.

    Raises:
        ConfigError: A setting is unknown or wrong.
    """
    values = {"checkpoint": str(checkpoint), "height": height, "width": width, "family": family, "dtype": dtype}
    values |= {"max_sequence_length": max_sequence_length, **settings}
    sampled = checked(SamplingParams, {"num_steps": 2, "shift": 1.0, "cfg_scale": cfg_scale}, "sampling")
    return Model(checked(ModelParams, values, "model"), sampled.cfg_scale)
