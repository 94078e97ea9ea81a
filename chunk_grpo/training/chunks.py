"""Which steps of which trajectories an update trains together, with which weights; and the plan over the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chunk_grpo.core.adaptive import adaptive_plan
from chunk_grpo.core.assignment import RATIO_CHUNKS, ChunkAssignment
from chunk_grpo.core.chunk_sampling import (
    SELECTION_RULES,
    chunk_weights,
    importance_weights,
    num_selected,
    select_chunks,
)
from chunk_grpo.core.chunking import ChunkPlan, boundary_shift, guided_plan
from chunk_grpo.core.dynamics import profile_drift, relative_l1
from chunk_grpo.core.step_weights import WEIGHTS_OF_STEPS
from chunk_grpo.seeding import generator
from chunk_grpo.training.method import Method
from chunk_grpo.training.rollouts import Drawn


@dataclass(frozen=True)
class TrainedChunks:
    """What an update trains of B trajectories.

    Attributes:
        assignment: The chunk of each step; a chunk has one importance ratio.
        selected: bool [B, Kmax], the chunks that are trained.
        weights: [B, Kmax], what each chunk's term counts, or None for 1.
    """

    assignment: ChunkAssignment
    selected: Tensor
    weights: Tensor | None


@dataclass(frozen=True)
class Draw:
    """Which draw of chunks this is: its place in the run, and these rows' places among those of all processes.

    Attributes:
        seed: Training seed.
        iteration: From 1.
        iterations: Of the whole run.
        update: From 0, within the iteration.
        rows: The number of each row in the update of all processes.
        total: Rows of the update in all processes.
    """

    seed: int
    iteration: int
    iterations: int
    update: int
    rows: range
    total: int


class Chunks:
    """The chunks of a variant: a plan that may follow the policy, and the draw of what is trained."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self._plan, self._weights = method.plan, method.chunk_weights
        self._first_profile: list[float] = []

    @property
    def plan(self) -> ChunkPlan:
        """The plan in use."""
        return self._plan

    def follow(self, profile: Sequence[float], iteration: int) -> dict[str, float]:
        """Make a guided plan anew when it is time to, and tell how far policy and plan have moved.

        Args:
            profile: Mean relative L1 distance [N] of this iteration's trajectories, so of the current policy.
            iteration: From 1.

        Returns:
            Metrics; none for a variant whose plan stays.
        """
        every, num_chunks = self._method.replan_every, self._method.guided_chunks
        if every is None or num_chunks is None:
            return {}
        if not self._first_profile:
            self._first_profile = list(profile)
        if iteration > 1 and (iteration - 1) % every == 0:
            self._plan = guided_plan(profile, num_chunks)
            self._weights = chunk_weights(profile, self._plan)
        sizes = {f"chunk_size/{chunk}": float(size) for chunk, size in enumerate(self._plan.sizes)}
        return {
            "profile_drift": profile_drift(profile, self._first_profile),
            "boundary_shift": boundary_shift(self._plan, self._method.plan),
            **sizes,
        }

    def state(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {
            "sizes": list(self._plan.sizes),
            "weights": self._weights,
            "first_profile": self._first_profile,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on with what `state` told."""
        self._plan, self._weights = ChunkPlan(tuple(state["sizes"])), state["weights"]
        self._first_profile = state["first_profile"]

    def select(self, drawn: Drawn, draw: Draw) -> TrainedChunks:
        """Draw the chunks to train of these trajectories, each on its own.

        With the step objective the steps of the drawn chunks are trained as chunks of one.
        """
        chunks = self._chunks_of(drawn)
        candidates = self._draw_weights(chunks, draw)  # [B, Kmax]
        selected = self._draw(candidates, draw)  # [B, Kmax]
        corrections = self._corrections(candidates, chunks)  # [B, Kmax] or None
        stds = self._method.grid.transition_stds()  # [N]
        by_step = WEIGHTS_OF_STEPS[self._method.step_weights](chunks, selected, stds)  # [B, N] or None
        trained = RATIO_CHUNKS[self._method.objective](chunks)  # N chunks at most, [B, N]

        def of_trained(values: Tensor) -> Tensor:
            """Values [B, Kmax] of the drawn chunks as those of the trained ones."""
            return values if trained is chunks else trained.means(chunks.to_steps(values))

        weights = None if by_step is None else trained.means(by_step)
        if corrections is not None:
            weights = of_trained(corrections) if weights is None else weights * of_trained(corrections)
        return TrainedChunks(trained, of_trained(selected.to(torch.float64)) > 0, weights)

    def _chunks_of(self, drawn: Drawn) -> ChunkAssignment:
        """The plan's chunks, a trajectory's own, or the noisy steps where not all are."""
        rows = len(drawn.states)
        if self._method.window or self._method.branching:
            number = drawn.noisy.cumsum(dim=1) - 1
            return ChunkAssignment(torch.where(drawn.noisy, number, -1))
        largest = self._method.adaptive_size
        if largest is None:
            return ChunkAssignment.shared(self._plan, rows)
        curves = relative_l1(drawn.states)[:, : drawn.noisy.shape[1]].tolist()
        return ChunkAssignment.per_row([adaptive_plan(curve, largest) for curve in curves])

    def _draw_weights(self, chunks: ChunkAssignment, draw: Draw) -> Tensor:
        """Weight of each chunk in the draw, float64 [B, Kmax]; 0 for one that may not be drawn."""
        candidates = chunks.exists.to(torch.float64)
        if self._method.train_chunks is not None:
            allowed = torch.zeros(candidates.shape[1], dtype=torch.float64)
            allowed[list(self._method.train_chunks)] = 1
            candidates = candidates * allowed
        rule = SELECTION_RULES[self._method.selection]
        if rule.weights is None:
            return candidates
        return candidates * rule.weights(self._weights.to(torch.float64), draw.iteration, draw.iterations)

    def _draw(self, candidates: Tensor, draw: Draw) -> Tensor:
        """The drawn chunks, bool [B, Kmax]: one draw for the update of all processes, of which these are rows.

        Trajectories with chunks of their own are drawn for as if they could have a chunk a step, so that the
        draw does not depend on how many the others have.
        """
        number = candidates.shape[1]
        width = number if self._method.adaptive_size is None else self._method.grid.num_sde_steps
        everywhere = torch.ones(draw.total, width, dtype=torch.float64)
        rows = slice(draw.rows.start, draw.rows.stop)
        everywhere[rows, :number], everywhere[rows, number:] = candidates, 0
        stream = generator("chunks", draw.seed, draw.iteration, draw.update)
        return select_chunks(everywhere, self._method.fraction, stream)[rows, :number]

    def _corrections(self, candidates: Tensor, chunks: ChunkAssignment) -> Tensor | None:
        """Importance weights [B, Kmax] that undo the bias of a weighted draw, where they are asked for."""
        if not SELECTION_RULES[self._method.selection].is_corrected:
            return None
        weights = candidates[0]  # a weighted draw has one plan for all
        drawable = weights > 0
        factors = torch.zeros_like(weights)
        count = num_selected(int(drawable.sum()), self._method.fraction)
        factors[drawable] = importance_weights(weights[drawable], count)
        return factors.expand(len(candidates), -1)
