"""Conditioning that stays in its files: choosing reads nothing, a batch reads each distinct row once."""

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from chunk_grpo.families.base import Conditioning
from chunk_grpo.families.prompts import NegativePrompt, PromptSet, StoredConditioning

WHOLE = Conditioning(
    {"prompt_embeds": torch.arange(24.0).reshape(4, 3, 2), "pooled": torch.arange(20.0).reshape(4, 5)},
    {"prompt_embeds": torch.ones(1, 3, 2), "pooled": torch.ones(1, 5)},
)

assert WHOLE.negative is not None
AWAY = NegativePrompt(WHOLE.negative)


class Files:
    """The rows of `WHOLE`; remembers what was read."""

    def __init__(self) -> None:
        self.reads: list[list[int]] = []

    def read(self, rows: Sequence[int]) -> Mapping[str, Tensor]:
        self.reads.append(list(rows))
        return WHOLE.rows(rows).tensors


def equal(a: Conditioning, b: Conditioning) -> bool:
    pairs = [*zip(a.tensors.values(), b.tensors.values(), strict=True)]
    assert a.negative is not None and b.negative is not None
    pairs += zip(a.negative.values(), b.negative.values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def test_a_batch_reads_each_distinct_row_once() -> None:
    files = Files()
    prompts = PromptSet(list("abcd"), list("ABCD"), [{}] * 4, StoredConditioning(files, [2, 0, 3, 0], AWAY))
    images = prompts.repeated(1000).rows([0, 1, 1000, 3999, 5])
    assert len(images.conditioning) == 5
    assert files.reads == []
    assert equal(images.conditioning.to("cpu"), WHOLE.rows([2, 2, 0, 0, 2]))
    assert files.reads == [[2, 0]]
    assert equal(prompts.rows([2, 0]).conditioning.to("cpu"), WHOLE.rows([3, 2]))
    assert equal(prompts.conditioning.rows(torch.tensor([1, 1])).to("cpu"), WHOLE.rows([0, 0]))


def test_the_negative_prompt_is_sent_once() -> None:
    stored = StoredConditioning(Files(), [2, 0], AWAY)
    first, second = (stored.rows([at]).to("cpu").negative for at in (0, 1))
    assert first is second
    assert StoredConditioning(Files(), [2]).to("cpu").negative is None


def test_a_prompt_without_embeddings_may_be_chosen_but_not_read() -> None:
    stored = StoredConditioning(Files(), [2, None], AWAY)
    assert equal(stored.rows([0]).to("cpu"), WHOLE.rows([2]))
    with pytest.raises(ValueError, match="a prompt has no stored conditioning"):
        stored.to("cpu")
