"""Packing of (sample, step) items into the micro-batches of an update."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from chunk_grpo.core.assignment import TrainedChunks


@dataclass(frozen=True)
class Packing:
    """Micro-batches of trained items, each int64 [n, 2]: row and step of each item."""

    divided: tuple[Tensor, ...]
    """Micro-batches with items of chunks that are larger than a micro-batch."""
    whole: tuple[Tensor, ...]
    """Micro-batches with items of the other chunks; all items of a chunk are in the same one."""

    @property
    def all(self) -> tuple[Tensor, ...]:
        """All micro-batches in order of execution."""
        return self.divided + self.whole

    @property
    def num_items(self) -> int:
        """Number of items in all micro-batches."""
        return sum(map(len, self.all))

    def with_gradient(self, slopes: Tensor) -> Packing:
        """The micro-batches that have a gradient; all of them if none has one.

        Whole micro-batches are left out, and no item of another one: the sums keep their order, so the gradient keeps
        its bits.

        Args:
            slopes: Derivative of the objective by each item [B, S - 1].
        """

        def kept(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(part for part in parts if bool(slopes[part[:, 0], part[:, 1]].any()))

        found = Packing(kept(self.divided), kept(self.whole))
        return found if found.all else self


def pack(chunks: TrainedChunks, size: int) -> Packing:
    """Pack the items of the trained chunks into micro-batches.

    Chunks are packed in order of decreasing size.

    Args:
        chunks: Trained chunks.
        size: Items per micro-batch, at least 1. A micro-batch may have fewer.
    """
    assignment = chunks.assignment
    items = (assignment.to_steps(chunks.selected.to(torch.float64)) > 0).nonzero()  # [n, 2]
    rows, steps = items.unbind(dim=1)
    chunk = assignment.chunk.to(items.device)[rows, steps]
    chunk_size = assignment.sizes.to(items.device)[rows, chunk]
    # Items are sorted by row and step; a stable sort keeps the items of a chunk adjacent.
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
