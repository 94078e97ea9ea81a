"""The updates of one iteration: rows, chunks, gradient and optimiser step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chunk_grpo.config import TrainParams
from chunk_grpo.errors import DataError
from chunk_grpo.families.sharding import local_shard
from chunk_grpo.seeding import generator
from chunk_grpo.training.chunk_selection import ChunkSelector, DrawContext
from chunk_grpo.training.method import Method
from chunk_grpo.training.optimizers import make_optimizer
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.rollouts import Experience
from chunk_grpo.training.step_values import NoiseOfItems, UpdateBatch
from chunk_grpo.training.stopping import Check
from chunk_grpo.training.update import Policies, Update, UpdateStats


@dataclass(frozen=True)
class TrainingBatch:
    """Training data of one iteration."""

    iteration: int
    """Number of the iteration, from 1."""
    experience: Experience
    """Trajectories of this process; the rows of each update are consecutive."""
    advantages: Tensor
    """Advantages of these rows, float64 [B] or [B, K]."""


class Learner:
    """Performs the updates of an iteration, each on its share of the rows.

    Attributes:
        selector: The chunks of the variant.
        bounds: Bounds of the next updates; the controller changes them.
        optimizer: The optimiser, wrapped by accelerate.
    """

    def __init__(
        self,
        policies: Policies,
        parameters: list[nn.Parameter],
        method: Method,
        settings: TrainParams,
        processes: Processes,
        seed: int,
    ) -> None:
        """Create the optimiser.

        Args:
            policies: Trained policy and reference.
            parameters: Trained parameters.
            method: Settings of the variant.
            settings: `train` section of params.yaml.
            processes: Processes of this training.
            seed: Training seed.

        Raises:
            ConfigError: The package of the optimiser is not installed.
        """
        self._policies, self._parameters, self._method = policies, parameters, method
        self._settings, self._processes, self._seed = settings, processes, seed
        self.selector = ChunkSelector(method)
        self.bounds = method.bounds
        self.optimizer = processes.prepare_optimizer(
            make_optimizer(settings.optimizer, parameters, settings.learning_rate, settings.weight_decay)
        )

    def prepare(self, batch: TrainingBatch, check: Check, *, fresh: bool) -> list[Update]:
        """Build the updates of the iteration.

        Args:
            batch: Training data. With `train.old_log_probs: training`, or values of the forward process, its old
                log-probabilities are replaced in place.
            check: Called before each micro-batch; raises to abort.
            fresh: Whether no update of the iteration has changed the policy yet. Only then can the old
                log-probabilities be evaluated again.
        """
        updates = [self._update(batch, number) for number in range(self._settings.updates_per_iteration)]
        forward = self._method.variant.likelihood != "transition"
        if fresh and (forward or self._settings.old_log_probs == "training"):
            kept = batch.experience.trajectories.log_probs.view(
                len(updates), -1, self._method.grid.num_sde_steps
            )
            # With sampled transitions the first update takes all ratios as 1 and needs no old values.
            first = 0 if forward else 1
            for number, update in enumerate(updates[first:], start=first):
                kept[number] = update.reevaluate_old(self._processes, check)
        return updates

    def optimizer_state(self) -> dict[str, Any]:
        """State dict of the optimiser; its tensors are sharded as the parameters are."""
        state: dict[str, Any] = self.optimizer.state_dict()
        return state

    def load_optimizer(self, optimizer: dict[str, Any]) -> None:
        """Restore the result of `optimizer_state`, with unsharded or stored tensors."""
        moments = {
            index: {name: self._part(index, value) for name, value in held.items()}
            for index, held in optimizer["state"].items()
        }
        self.optimizer.load_state_dict({**optimizer, "state": moments})

    def _part(self, index: int, value: Any) -> Any:
        """This process's part of a value of the optimiser's state for one parameter."""
        parameter = self._parameters[index]
        return local_shard(parameter, value) if getattr(value, "shape", None) == parameter.shape else value

    def step(
        self, update: Update, batch: TrainingBatch, number: int, check: Check
    ) -> tuple[UpdateStats, float]:
        """Perform one update; return its statistics and the norm of its gradient before clipping.

        Args:
            update: Update to perform, from `prepare`.
            batch: Training data of the iteration.
            number: Number of the update within the iteration, from 0.
            check: Called before each micro-batch; raises to abort, which leaves weights and optimiser unchanged.

        Raises:
            DataError: A ratio or the gradient is not finite.
        """
        self.optimizer.zero_grad()
        stats = update.accumulate_gradient(self._processes, on_policy=number == 0, check=check)
        # All ranks must agree; otherwise the rest block in the next collective.
        if self._processes.any(not bool(torch.isfinite(stats.ratios).all())):
            raise DataError(f"update {number}: an importance ratio is not finite. {_REMEDY}")
        norm = self._processes.clip_gradient(self._parameters, self._settings.max_grad_norm)
        if self._processes.any(not math.isfinite(norm)):
            raise DataError(f"update {number}: the gradient is not finite. {_REMEDY}")
        self.optimizer.step()
        self.optimizer.zero_grad()  # gradients take no memory during the next rollout
        return stats, norm

    def _update(self, batch: TrainingBatch, number: int) -> Update:
        experience = batch.experience
        size = len(experience.trajectories.states) // self._settings.updates_per_iteration
        rows = slice(number * size, (number + 1) * size)
        part = experience.trajectories.rows(rows)
        context = DrawContext(
            seed=self._seed,
            iteration=batch.iteration,
            iterations=self._settings.iterations,
            update=number,
            rows=range(self._processes.index * size, (self._processes.index + 1) * size),
            total=size * self._processes.count,
        )
        rows_of_update = UpdateBatch(
            states=part.states,
            first_step=part.first_step,
            conditioning=experience.prompts.conditioning.rows(range(rows.start, rows.stop)),
            advantages=batch.advantages[rows].to(torch.float32),
            old_log_probs=part.log_probs,
            old_means=part.means,
            chunks=self.selector.select(part, context),
            finals=part.finals,
            noise=self._noise_of(context, part.finals.shape[1:]),
        )
        return Update(
            self._policies, self._method, rows_of_update, self.bounds, self._settings.micro_batch_size
        )

    def _noise_of(self, context: DrawContext, shape: torch.Size) -> NoiseOfItems:
        """Noise of the forward process, [n, *shape]: a stream for each row and step, whatever process has it."""

        def noise(rows: Tensor, steps: Tensor) -> Tensor:
            streams = (
                generator("forward", context.seed, context.iteration, context.update, context.rows[row], step)
                for row, step in zip(rows.tolist(), steps.tolist(), strict=True)
            )
            return torch.stack([torch.randn(shape, generator=stream) for stream in streams])

        return noise


_REMEDY = "Lower train.learning_rate or train.max_grad_norm and run again."
