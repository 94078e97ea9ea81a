"""Assignment of steps to chunks, for trajectories with different plans or untrained steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from chunk_grpo.core.choices import OBJECTIVES, Objective, implemented
from chunk_grpo.core.chunking import ChunkPlan, chunk_means, single_plan

UNTRAINED = -1
"""Marks a step that belongs to no chunk."""


@dataclass(frozen=True, eq=False)
class ChunkAssignment:
    """The chunk of each step: a plan for every trajectory of a batch, with room for untrained steps.

    Rows may have different numbers of chunks. Per-chunk values are [B, Kmax]; `exists` separates chunks from
    padding. A sliding window or a branch trains few steps and marks the others -1.
    """

    chunk: Tensor
    """int64 [B, N], the chunk's number or -1 for a step that belongs to none. In each row the chunks are runs of
    consecutive steps, numbered 0, 1, .. from noise to image; some row has at least one."""

    def __post_init__(self) -> None:
        """Validate shape and type, and that the chunks of each row are runs numbered 0, 1, .. in order."""
        if self.chunk.dtype != torch.int64 or self.chunk.ndim != 2 or self.chunk.numel() == 0:
            raise ValueError(
                "an assignment must be int64 [B, N] with B and N at least 1, "
                f"got {self.chunk.dtype} {tuple(self.chunk.shape)}"
            )
        before = torch.nn.functional.pad(self.chunk[:, :-1], (1, 0), value=UNTRAINED)
        highest = before.cummax(dim=1).values
        untrained = self.chunk == UNTRAINED
        stays = (self.chunk == before) & ~untrained
        opens = self.chunk == highest + 1
        wrong = ~(untrained | stays | opens).all(dim=1)
        if bool(wrong.any()):
            raise ValueError(
                "the chunks of a row must be runs of consecutive steps numbered 0, 1, .. from noise to image "
                f"({UNTRAINED} for no chunk), got {self.chunk[wrong][0].tolist()}"
            )
        if bool(untrained.all()):
            raise ValueError("an assignment needs at least one chunk, got none in any row")

    @classmethod
    def shared(cls, plan: ChunkPlan, batch: int) -> ChunkAssignment:
        """The same plan for every trajectory.

        Args:
            plan: The chunks of the N steps.
            batch: Number of trajectories B, at least 1.

        Returns:
            The assignment [B, N].

        Raises:
            ValueError: batch is smaller than 1.
        """
        return cls.per_row([plan] * batch)

    @classmethod
    def per_row(cls, plans: Sequence[ChunkPlan]) -> ChunkAssignment:
        """A plan for each trajectory.

        Args:
            plans: B plans over the same number of steps N.

        Returns:
            The assignment [B, N].

        Raises:
            ValueError: There are no plans, or they cover different numbers of steps.
        """
        lengths = sorted({plan.num_steps for plan in plans})
        if len(lengths) != 1:
            raise ValueError(
                "the plans of an assignment must be at least one and cover the same number of steps, "
                f"got {len(plans)} plans over {lengths} steps"
            )
        return cls(torch.tensor([plan.chunk_of_step() for plan in plans]))

    def single_steps(self) -> ChunkAssignment:
        """Make each trained step its own chunk.

        Returns:
            The assignment [B, N]; the steps of each row are numbered 0, 1, .. from noise to image.
        """
        trained = self.chunk != UNTRAINED  # [B, N]
        return ChunkAssignment(torch.where(trained, trained.cumsum(dim=1) - 1, UNTRAINED))

    @property
    def num_chunks(self) -> Tensor:
        """Number of chunks of each row, int64 [B], at least 0."""
        return self.chunk.amax(dim=1) + 1

    @cached_property
    def max_chunks(self) -> int:
        """Largest number of chunks of a row, Kmax, at least 1."""
        return int(self.num_chunks.max())

    @property
    def exists(self) -> Tensor:
        """Whether a row has a chunk of that number, bool [B, Kmax]."""
        return torch.arange(self.max_chunks, device=self.chunk.device) < self.num_chunks.unsqueeze(1)

    @property
    def sizes(self) -> Tensor:
        """Number of steps of each chunk, int64 [B, Kmax], 0 where there is none."""
        return self._belongs.sum(dim=1)

    @property
    def _belongs(self) -> Tensor:
        """Whether a step belongs to a chunk, bool [B, N, Kmax]."""
        numbers = torch.arange(self.max_chunks, device=self.chunk.device)
        return self.chunk.unsqueeze(2) == numbers

    @cached_property
    def _alike(self) -> list[tuple[int, Tensor, Tensor, Tensor]]:
        """Chunks of equal size: the size, their rows [n], their numbers [n] and their steps [n, size].

        Kept, since an update asks for means before each micro-batch.
        """
        sizes = self.sizes
        first = self._belongs.to(torch.int64).argmax(dim=1)  # [B, Kmax]
        found = []
        for size in sizes[sizes > 0].unique().tolist():
            row, number = (sizes == size).nonzero(as_tuple=True)
            steps = first[row, number].unsqueeze(1) + torch.arange(size, device=sizes.device)
            found.append((size, row, number, steps))
        return found

    def means(self, values: Tensor) -> Tensor:
        """Mean of per-step values over each chunk.

        Chunks of equal size are computed together, so plans per trajectory cost no more than a shared one. A shared
        plan gives the result of `chunk_means` bit for bit. Values at untrained steps, NaN included, are not read.

        Args:
            values: Per-step values [B, N].

        Returns:
            [B, Kmax], 0 where there is no chunk.

        Raises:
            ValueError: Another shape.
        """
        _require_shape(values, self.chunk)
        means = values.new_zeros(len(self.chunk), self.max_chunks)
        for size, row, number, steps in self._alike:
            found = chunk_means(values[row.unsqueeze(1), steps], single_plan(size)).squeeze(1)
            means[row, number] = found
        return means

    def to_steps(self, values: Tensor) -> Tensor:
        """Give each step the value of its chunk.

        Args:
            values: Per-chunk values [B, Kmax].

        Returns:
            [B, N], 0 at untrained steps.

        Raises:
            ValueError: Another shape.
        """
        _require_shape(values, self.exists)
        chunk = self.chunk.to(values.device)
        return values.gather(1, chunk.clamp(min=0)).where(chunk >= 0, values.new_zeros(()))


@dataclass(frozen=True)
class TrainedChunks:
    """The trained chunks of B trajectories."""

    assignment: ChunkAssignment
    """Chunk of each step. Each chunk has one importance ratio."""
    selected: Tensor
    """Bool [B, Kmax], whether a chunk is trained; at least one in each row."""
    weights: Tensor | None = None
    """[B, Kmax], weight w of each chunk's clipped term in the objective, at least 0; None: all 1."""
    kl_weights: Tensor | None = None
    """[B, Kmax], weight v of each chunk's KL divergence, at least 0; None: all 1."""

    @classmethod
    def every(cls, assignment: ChunkAssignment) -> TrainedChunks:
        """All chunks that exist, with the same weight."""
        return cls(assignment, assignment.exists)


RATIO_CHUNKS: Mapping[Objective, Callable[[ChunkAssignment], ChunkAssignment]] = implemented(
    OBJECTIVES, "core/assignment.py", {"step": ChunkAssignment.single_steps, "chunk": lambda chunks: chunks}
)
"""By objective: function from the drawn chunks to the chunks that share an importance ratio."""


def _require_shape(values: Tensor, like: Tensor) -> None:
    if values.shape != like.shape:
        raise ValueError(f"values must fit the assignment with shape {tuple(like.shape)}, got {tuple(values.shape)}")
