"""Micro-batches of the update: which (sample, step) items go through the network together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from chunk_grpo.training.chunks import TrainedChunks


@dataclass(frozen=True)
class Packing:
    """The trained items in micro-batches, each int64 [n, 2]: rows and steps.

    Attributes:
        divided: Items of chunks that are larger than a micro-batch.
        whole: Items of the other chunks; a chunk's items are all in one of them.
    """

    divided: tuple[Tensor, ...]
    whole: tuple[Tensor, ...]

    @property
    def all(self) -> tuple[Tensor, ...]:
        """All micro-batches, in the order in which they are run."""
        return self.divided + self.whole


def pack(chunks: TrainedChunks, size: int) -> Packing:
    """Put the items of the trained chunks into micro-batches.

    Large chunks go first, so that small ones fill what they leave.

    Args:
        chunks: What is trained.
        size: Items of a micro-batch, at least 1. Those of `whole` may have fewer.
    """
    assignment = chunks.assignment
    items = (assignment.to_steps(chunks.selected.to(torch.float64)) > 0).nonzero()
    rows, steps = items.unbind(dim=1)
    chunk = assignment.chunk.to(items.device)[rows, steps]
    chunk_size = assignment.sizes.to(items.device)[rows, chunk]
    # Items come row by row and step by step, and a stable order leaves those of a chunk beside each other.
    order = chunk_size.argsort(descending=True, stable=True)
    num_divided = int((chunk_size > size).sum())
    divided = items[order[:num_divided]].split(size) if num_divided else ()
    whole = items[order[num_divided:]]
    fits = chunk_size[order[num_divided:]].tolist()
    starts, at = [0], 0
    while at < len(fits):
        if at + fits[at] - starts[-1] > size:
            starts.append(at)
        at += fits[at]
    ends = [*starts, len(fits)] if fits else []
    return Packing(tuple(divided), tuple(whole[a:b] for a, b in pairwise(ends)))
