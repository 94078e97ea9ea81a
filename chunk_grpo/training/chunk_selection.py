"""The chunks that an update trains, their weights, and the chunk plan over the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chunk_grpo.core.adaptive import adaptive_plan
from chunk_grpo.core.assignment import RATIO_CHUNKS, ChunkAssignment, TrainedChunks
from chunk_grpo.core.chunk_sampling import (
    SELECTION_RULES,
    chunk_weights,
    importance_weights,
    num_selected,
    select_chunks,
    tempered_weights,
)
from chunk_grpo.core.chunking import ChunkPlan, boundary_shift, guided_plan
from chunk_grpo.core.dynamics import profile_drift, relative_l1
from chunk_grpo.core.step_weights import STEP_WEIGHT_RULES
from chunk_grpo.seeding import generator
from chunk_grpo.training.method import Method
from chunk_grpo.training.rollouts import SampledTrajectories


@dataclass(frozen=True)
class DrawContext:
    """Index of a draw of chunks: its update, and the rows of this process among all rows."""

    seed: int
    """Training seed."""
    iteration: int
    """Number of the iteration, from 1."""
    iterations: int
    """Number of iterations of the whole run."""
    update: int
    """Number of the update within the iteration, from 0."""
    rows: range
    """Indices of this process's rows among the update's rows of all processes."""
    total: int
    """Number of the update's rows in all processes."""


class ChunkSelector:
    """The chunks of a variant: the plan, which may be recomputed, and the draw of the trained chunks."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self._plan, self._weights = method.plan, method.chunk_weights
        self._first_profile: list[float] = []

    @property
    def plan(self) -> ChunkPlan:
        """The plan in use."""
        return self._plan

    def follow(self, profile: Sequence[float], iteration: int) -> dict[str, float]:
        """Recompute a guided plan every `replan_every` iterations, and measure the drift of profile and plan.

        Args:
            profile: Mean relative L1 distance [N] of this iteration's trajectories.
            iteration: Number of the iteration, from 1.

        Returns:
            Metrics by name; empty for a variant with a fixed plan.
        """
        every, num_chunks = self._method.variant.replan_every, self._method.guided_chunks
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
        """Plan, weights and first profile, for a checkpoint."""
        return {"sizes": list(self._plan.sizes), "weights": self._weights, "first_profile": self._first_profile}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        self._plan, self._weights = ChunkPlan(tuple(state["sizes"])), state["weights"]
        self._first_profile = state["first_profile"]

    def select(self, trajectories: SampledTrajectories, context: DrawContext) -> TrainedChunks:
        """Draw the chunks to train, independently for each trajectory.

        With the step objective, each step of a drawn chunk becomes a chunk of size 1.

        Args:
            trajectories: B trajectories.
            context: Index of the draw; it names the random stream.
        """
        chunks = self._chunks_of(trajectories)
        candidates = self._draw_weights(chunks, trajectories, context)  # [B, Kmax]
        selected = self._draw(candidates, context)  # [B, Kmax]
        corrections = self._corrections(candidates, chunks)  # [B, Kmax] or None
        stds = self._method.grid.transition_stds()  # [N]
        rule = STEP_WEIGHT_RULES[self._method.variant.step_weights]
        widths = self._method.grid.widths()  # [N]
        by_step = rule.weights(chunks, selected, stds, widths)  # [B, N] or None
        trained = RATIO_CHUNKS[self._method.variant.objective](chunks)  # N chunks at most, [B, N]

        def of_trained(values: Tensor) -> Tensor:
            """Values [B, Kmax] of the drawn chunks as values of the trained chunks."""
            return values if trained is chunks else trained.means(chunks.to_steps(values))

        corrected = None if corrections is None else of_trained(corrections)
        weights = _product(None if by_step is None else trained.means(by_step), corrected)
        return TrainedChunks(
            trained,
            of_trained(selected.to(torch.float64)) > 0,
            weights,
            kl_weights=weights if rule.weighs_kl else corrected,
        )

    def _chunks_of(self, trajectories: SampledTrajectories) -> ChunkAssignment:
        """The plan's chunks; chunks of each trajectory (adaptive plan); or single noisy steps (window, branches)."""
        rows = len(trajectories.states)
        if self._method.variant.window or self._method.variant.branching:
            number = trajectories.noisy.cumsum(dim=1) - 1  # [B, N]
            return ChunkAssignment(torch.where(trajectories.noisy, number, -1))
        largest = self._method.adaptive_size
        if largest is None:
            return ChunkAssignment.shared(self._plan, rows)
        curves = self._curves(trajectories).tolist()
        return ChunkAssignment.per_row([adaptive_plan(curve, largest) for curve in curves])

    @staticmethod
    def _curves(trajectories: SampledTrajectories) -> Tensor:
        """Relative L1 distance of each trainable step, [B, N]."""
        return relative_l1(trajectories.states)[:, : trajectories.noisy.shape[1]]

    def _draw_weights(self, chunks: ChunkAssignment, trajectories: SampledTrajectories, context: DrawContext) -> Tensor:
        """Weight of each chunk in the draw of an iteration, float64 [B, Kmax]; 0: never drawn."""
        candidates = chunks.exists.to(torch.float64)
        if self._method.variant.train_chunks is not None:
            allowed = torch.zeros(candidates.shape[1], dtype=torch.float64)
            allowed[list(self._method.variant.train_chunks)] = 1
            candidates = candidates * allowed
        rule = SELECTION_RULES[self._method.variant.selection]
        if rule.exponent is None:
            return candidates
        weights = self._weights.to(torch.float64)  # [K]
        if rule.of_trajectory:
            curves = self._curves(trajectories).to("cpu", torch.float64)
            weights = chunks.means(curves) / curves.mean(dim=1, keepdim=True)  # [B, K]
        exponent = self._method.variant.selection_exponent * rule.exponent(context.iteration, context.iterations)
        return candidates * (weights if exponent == 1 else tempered_weights(weights, exponent))

    def _draw(self, candidates: Tensor, context: DrawContext) -> Tensor:
        """The drawn chunks, bool [B, Kmax].

        Draws for the rows of all processes and returns the rows of this one. With an adaptive plan the draw has one
        column per step, so that a row's result does not depend on the number of chunks of the other rows.
        """
        number = candidates.shape[1]
        width = number if self._method.adaptive_size is None else self._method.grid.num_sde_steps
        everywhere = torch.ones(context.total, width, dtype=torch.float64)  # [rows of all processes, width]
        rows = slice(context.rows.start, context.rows.stop)
        everywhere[rows, :number], everywhere[rows, number:] = candidates, 0
        stream = generator("chunks", context.seed, context.iteration, context.update)
        return select_chunks(everywhere, self._method.variant.fraction, stream)[rows, :number]

    def _corrections(self, candidates: Tensor, chunks: ChunkAssignment) -> Tensor | None:
        """Importance weights [B, Kmax] that undo the bias of a weighted draw; None if the rule has none."""
        if not SELECTION_RULES[self._method.variant.selection].is_corrected:
            return None
        weights = candidates[0]  # with weighted selection all rows share one plan
        drawable = weights > 0
        factors = torch.zeros_like(weights)
        count = num_selected(int(drawable.sum()), self._method.variant.fraction)
        factors[drawable] = importance_weights(weights[drawable], count)
        return factors.expand(len(candidates), -1)


def _product(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Product of two weights, of which None is 1."""
    if first is None or second is None:
        return second if first is None else first
    return first * second
