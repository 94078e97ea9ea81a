"""Embeddings of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from chunk_grpo.families.base import Family, Picture
from chunk_grpo.parallel import Workers
from chunk_grpo.progress import Meter


def negative_of(family: Family, text: str) -> Mapping[str, Tensor] | None:
    """Tensors [1, ...] of the negative prompt, on the CPU; None: `encoded` has them for each row."""
    return None if family.only_edits else family.encode([text]).to("cpu").tensors


def encoded(
    family: Family,
    texts: Sequence[str],
    batch_size: int,
    workers: Workers,
    pictures: Sequence[Callable[[], Picture]] | None = None,
    negative: str | None = None,
) -> Iterator[Mapping[str, Tensor]]:
    """Encode texts, and the pictures that they edit; yield the tensors of each batch, on the CPU, in the main process.

    With the negative prompt, a family that only edits encodes that too, for each row.

    All batches have `batch_size` texts, so that a text has the same embedding whichever others are encoded: sizes of
    matrices decide how a product is rounded. A training with more iterations then finds the embeddings that it knows.
    """
    rows = range(len(texts))
    batches = [rows[start : start + batch_size] for start in range(0, len(texts), batch_size)]

    def encode(batch: Sequence[int]) -> Mapping[str, Tensor]:
        whole = [*batch, *[batch[-1]] * (batch_size - len(batch))]
        edited = None if pictures is None else [pictures[row]() for row in whole]
        tensors = family.encode([texts[row] for row in whole], edited, negative).to("cpu").tensors
        return {name: tensor[: len(batch)] for name, tensor in tensors.items()}

    with Meter("encoding prompts", len(texts)) as meter:
        # Other processes have no results.
        for tensors, batch in zip(workers.in_order(batches, encode), batches, strict=False):
            yield tensors
            meter.advance(len(batch))
