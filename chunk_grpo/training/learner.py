"""The updates of one iteration: which rows, which chunks, the gradient, the optimiser's step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chunk_grpo.config import TrainParams
from chunk_grpo.errors import DataError
from chunk_grpo.families.sharding import gathered, part_for
from chunk_grpo.training.chunks import Chunks, Draw
from chunk_grpo.training.method import Method
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.rollouts import Experience
from chunk_grpo.training.stopping import Check
from chunk_grpo.training.update import Objective, Policies, Update, UpdateBatch, UpdateStats


@dataclass(frozen=True)
class Lesson:
    """What one iteration learns from.

    Attributes:
        iteration: From 1.
        experience: Rows of this process; those of each update follow each other.
        advantages: [B] or [B, K].
    """

    iteration: int
    experience: Experience
    advantages: Tensor


class Learner:
    """Takes an iteration's optimiser steps, each on its share of the rows."""

    def __init__(
        self,
        policies: Policies,
        parameters: list[nn.Parameter],
        method: Method,
        settings: TrainParams,
        processes: Processes,
        seed: int,
    ) -> None:
        """Prepare.

        Args:
            policies: The velocity that is trained, and the reference's.
            parameters: What the optimiser changes.
            method: The variant.
            settings: The `train` section of params.yaml.
            processes: Those that train together.
            seed: Training seed.
        """
        self._policies, self._parameters, self._method = policies, parameters, method
        self._settings, self._processes, self._seed = settings, processes, seed
        self.chunks = Chunks(method)
        self.optimizer = processes.prepare_optimizer(
            torch.optim.AdamW(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        )

    def prepare(self, lesson: Lesson, check: Check, *, fresh: bool) -> list[Update]:
        """The iteration's updates.

        Args:
            lesson: What they learn from.
            check: Called before each micro-batch; it may raise to give up.
            fresh: Whether none of them has changed the policy yet. Only then can the old log-probabilities be
                evaluated again; they take the place of the rollout's in the lesson.
        """
        updates = [self._update(lesson, number) for number in range(self._settings.updates_per_iteration)]
        if fresh and self._settings.old_log_probs == "training":
            kept = lesson.experience.drawn.log_probs.view(len(updates), -1, self._method.grid.num_sde_steps)
            # The first one's ratios are 1, whatever the old values.
            for number, update in enumerate(updates[1:], start=1):
                kept[number] = update.reevaluate_old(self._processes, check)
        return updates

    def optimizer_state(self) -> dict[str, Any]:
        """The optimiser's own, whole. Where it is spread over processes, all must call, and only the first gets it."""
        return _with_tensors(self.optimizer.state_dict(), lambda _, value: gathered(value))

    def load_state(self, optimizer: dict[str, Any], chunks: dict[str, Any]) -> None:
        """Go on with the state of the optimiser and of the chunks."""

        def part(index: int, value: Tensor) -> Tensor:
            parameter = self._parameters[index]
            return part_for(parameter, value) if value.shape == parameter.shape else value

        self.optimizer.load_state_dict(_with_tensors(optimizer, part))
        self.chunks.load_state(chunks)

    def step(self, update: Update, lesson: Lesson, number: int, check: Check) -> tuple[UpdateStats, float]:
        """One optimiser step; what the update saw, and the norm of its gradient.

        Args:
            update: The update of that number.
            lesson: What it learns from.
            number: From 0 within the iteration.
            check: Called before each micro-batch; it may raise to give the update up, which changes nothing.

        Raises:
            DataError: A ratio or the gradient is not finite.
        """
        self.optimizer.zero_grad()
        stats = update.accumulate_gradient(self._processes, on_policy=number == 0, check=check)
        # Asked of all, or the others would wait for one that has left.
        if self._processes.any(not bool(torch.isfinite(stats.ratios).all())):
            raise DataError(f"update {number}: an importance ratio is not finite. {_REMEDY}")
        norm = self._processes.clip_gradient(self._parameters, self._settings.max_grad_norm)
        if self._processes.any(not math.isfinite(norm)):
            raise DataError(f"update {number}: the gradient is not finite. {_REMEDY}")
        self.optimizer.step()
        return stats, norm

    def _update(self, lesson: Lesson, number: int) -> Update:
        experience, objective = lesson.experience, self._objective()
        device = experience.drawn.states.device
        size = len(experience.drawn.states) // self._settings.updates_per_iteration
        rows = slice(number * size, (number + 1) * size)
        part = experience.drawn.rows(rows)
        draw = Draw(
            seed=self._seed,
            iteration=lesson.iteration,
            iterations=self._settings.iterations,
            update=number,
            rows=range(self._processes.index * size, (self._processes.index + 1) * size),
            total=size * self._processes.count,
        )
        batch = UpdateBatch(
            states=part.states,
            first_step=part.first_step,
            conditioning=experience.prompts.conditioning.rows(range(rows.start, rows.stop)),
            advantages=lesson.advantages[rows].to(device, torch.float32),
            old_log_probs=part.log_probs,
            old_means=part.means,
            chunks=self.chunks.select(part, draw),
        )
        return Update(self._policies, self._method.grid, batch, objective, self._settings.micro_batch_size)

    def _objective(self) -> Objective:
        method = self._method
        return Objective(method.clip_range, method.kl_coef, method.ratio_norm)


def _with_tensors(state: dict[str, Any], change: Callable[[int, Tensor], Tensor]) -> dict[str, Any]:
    """An optimiser's state with its tensors changed, given the number of the parameter that each belongs to."""
    changed = {
        index: {
            name: change(index, value) if isinstance(value, Tensor) else value for name, value in held.items()
        }
        for index, held in state["state"].items()
    }
    return {**state, "state": changed}


_REMEDY = "Lower train.learning_rate or train.max_grad_norm and run again."
