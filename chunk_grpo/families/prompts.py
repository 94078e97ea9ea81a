"""Prompts with their text-encoder outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chunk_grpo.errors import DataError
from chunk_grpo.families.base import Conditioning


@dataclass(frozen=True)
class PromptSet:
    """P prompts: ids, texts, scorer metadata and conditioning rows, in the same order."""

    ids: Sequence[str]
    texts: Sequence[str]
    metadata: Sequence[Mapping[str, object]]
    conditioning: Conditioning

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, index: Sequence[int]) -> PromptSet:
        """The prompts at `index`."""
        return PromptSet(
            [self.ids[i] for i in index],
            [self.texts[i] for i in index],
            [self.metadata[i] for i in index],
            self.conditioning.rows(index),
        )

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
