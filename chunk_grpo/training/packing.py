"""Packing of (sample, step) items into the micro-batches of an update."""

from __future__ import annotations

from dataclasses import dataclass, replace
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


def with_slope(chunks: TrainedChunks, slopes: Tensor) -> TrainedChunks:
    """The trained chunks on which the objective depends; all of them if it depends on none.

    Args:
        chunks: Trained chunks.
        slopes: Derivative of the objective by each item's value [B, S - 1].
    """
    useful = chunks.selected & (chunks.assignment.means((slopes != 0).to(torch.float64)) > 0)  # [B, Kmax]
    return replace(chunks, selected=useful) if useful.any() else chunks


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
