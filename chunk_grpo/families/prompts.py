"""Prompts with their text-encoder outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chunk_grpo.errors import DataError
from chunk_grpo.families.base import Conditioning, ConditioningRows, Picture
from chunk_grpo.image_files import all_fitted


class RowReader(Protocol):
    """Files with the conditioning of many prompts, one row each."""

    def read(self, rows: Sequence[int]) -> Mapping[str, Tensor]:
        """The tensors [n, ...] of n rows by name, on the CPU."""
        ...


class NegativePrompt:
    """Tensors [1, ...] of the negative prompt by name, sent to a device once and not with every batch."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._sent: dict[torch.device, Mapping[str, Tensor]] = {}

    def on(self, device: torch.device | str) -> Mapping[str, Tensor]:
        """The tensors on a device."""
        place = torch.device(device)
        if place not in self._sent:
            self._sent[place] = {name: tensor.to(place) for name, tensor in self._tensors.items()}
        return self._sent[place]


@dataclass(frozen=True)
class StoredConditioning:
    """Conditioning of B prompts in files. Choosing and repeating prompts reads nothing."""

    reader: RowReader
    """The files."""
    stored: Sequence[int | None]
    """Row of each prompt in them, B numbers; None: the prompt has none, and `to` must not be asked for it."""
    negative: NegativePrompt | None = None
    """The negative prompt; None without classifier-free guidance, or if the files have each row's own."""

    def __len__(self) -> int:
        return len(self.stored)

    def rows(self, index: Tensor | Sequence[int]) -> StoredConditioning:
        """The prompts at `index`, repetitions allowed."""
        chosen = index.tolist() if isinstance(index, Tensor) else index
        return StoredConditioning(self.reader, [self.stored[i] for i in chosen], self.negative)

    def to(self, device: torch.device | str) -> Conditioning:
        """The tensors of all B prompts on a device. Each distinct row is read and sent once, and repeated there.

        Raises:
            ValueError: A prompt has no row.
            DataError: The files cannot be read.
        """
        places: dict[int, int] = {}
        for row in self.stored:
            if row is None:
                raise ValueError("a prompt has no stored conditioning: check before work which prompts need it")
            places.setdefault(row, len(places))
        read = Conditioning(self.reader.read(list(places))).to(device)
        if len(places) < len(self.stored):
            read = read.rows([places[row] for row in self.stored if row is not None])
        return read if self.negative is None else replace(read, negative=self.negative.on(device))


@dataclass(frozen=True)
class PromptSet:
    """P prompts: ids, texts, scorer metadata, conditioning rows and pictures to edit, in the same order."""

    ids: Sequence[str]
    texts: Sequence[str]
    metadata: Sequence[Mapping[str, object]]
    conditioning: ConditioningRows
    pictures: Sequence[Callable[[], Picture]] | None = None
    """Function of each prompt that reads the picture to edit; None: they edit none."""

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, index: Sequence[int]) -> PromptSet:
        """The prompts at `index`."""
        return PromptSet(
            [self.ids[i] for i in index],
            [self.texts[i] for i in index],
            [self.metadata[i] for i in index],
            self.conditioning.rows(index),
            None if self.pictures is None else [self.pictures[i] for i in index],
        )

    def sources(self, height: int, width: int) -> NDArray[np.uint8] | None:
        """Pictures to edit at the size of the images [P, H, W, 3]; None: there are none."""
        return None if self.pictures is None else all_fitted(self.pictures, height, width)

    def repeated(self, count: int) -> PromptSet:
        """Repeat each prompt `count` times consecutively: one row per image."""
        return self.rows([i for i in range(len(self)) for _ in range(count)])

    def groups(self) -> list[int]:
        """Group number of each row. Rows with the same prompt id have the same number."""
        numbers: dict[str, int] = {}
        return [numbers.setdefault(name, len(numbers)) for name in self.ids]


def require_finite(latents: Tensor, prompts: PromptSet, when: str, remedy: str) -> None:
    """Reject latents that are not finite: decoded, NaN would become a black image.

    Args:
        latents: Latents [B, ...].
        prompts: Prompt of each latent, B rows.
        when: Start of the message, such as "iteration 3".
        remedy: End of the message: the next step for the user.

    Raises:
        DataError: A value is not finite; the message names the first such prompt.
    """
    bad = (~torch.isfinite(latents).flatten(1).all(dim=1)).cpu().nonzero().flatten().tolist()
    if bad:
        raise DataError(f"{when}: the latents of prompt {prompts.texts[bad[0]]!r} are not finite. {remedy}")
