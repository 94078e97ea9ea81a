"""An iteration in progress, and what its updates change: weights, optimiser and averages.

A training that was stopped between two updates resumes from the state of both to the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chunk_grpo.config import TrainParams
from chunk_grpo.errors import DataError
from chunk_grpo.families.base import Family, Spread, TuningOptions, VelocityModel
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.families.sharding import local_shard
from chunk_grpo.seeding import derive_seed
from chunk_grpo.training.base_distance import BaseModel
from chunk_grpo.training.chunk_selection import ChunkSelector, DrawContext
from chunk_grpo.training.ema import ExponentialMovingAverage, constant, rising, warming
from chunk_grpo.training.forward_values import drawn_pairs
from chunk_grpo.training.method import Method
from chunk_grpo.training.metrics import fidelity_quantiles
from chunk_grpo.training.optimizers import make_optimizer
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.rollouts import Experience, SampledTrajectories
from chunk_grpo.training.stopping import Check
from chunk_grpo.training.update import Policies, Update, UpdateBatch, UpdateStats

_REMEDY = "Lower the learning rate (train.learning_rate, or the variant's own) or train.max_grad_norm and run again."


@dataclass
class IterationState:
    """An iteration in progress."""

    number: int
    """Number of the iteration, from 1."""
    experience: Experience
    """Trajectories of this process; the rows of each update are consecutive."""
    advantages: Tensor
    """Advantages of these rows, float64 [B] or [B, K]."""
    metrics: dict[str, float]
    """Rollout metrics by name."""
    updates: list[tuple[UpdateStats, float]] = field(default_factory=list)
    """Statistics and gradient norm of each completed update."""
    seconds: float = 0.0
    """Time spent on updates, in seconds."""

    def state(self) -> dict[str, Any]:
        """Plain values and tensors, for a checkpoint. Prompts are left out: the iteration determines them."""
        experience = self.experience
        return {
            "iteration": self.number,
            "advantages": self.advantages,
            "trajectories": experience.trajectories.state(),
            "group_size": experience.group_size,
            "scores": {name: torch.from_numpy(values) for name, values in experience.scores.items()},
            "rollout_seconds": experience.seconds,
            "metrics": self.metrics,
            "updates": [(vars(stats), norm) for stats, norm in self.updates],
            "seconds": self.seconds,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], prompts: PromptSet, device: torch.device) -> IterationState:
        """Restore the result of `state`.

        Args:
            state: Result of `state`, of this process.
            prompts: Prompt of each trajectory of this process.
            device: Device of the restored latents.
        """
        experience = Experience(
            prompts=prompts,
            trajectories=SampledTrajectories.from_state(state["trajectories"], device),
            group_size=state["group_size"],
            scores={name: values.numpy() for name, values in state["scores"].items()},
            seconds=state["rollout_seconds"],
        )
        return cls(
            number=state["iteration"],
            experience=experience,
            advantages=state["advantages"],
            metrics=state["metrics"],
            updates=[(UpdateStats(**stats), norm) for stats, norm in state["updates"]],
            seconds=state["seconds"],
        )


class Learner:
    """Performs the updates of an iteration, each on its share of the rows.

    Attributes:
        selector: The chunks of the variant.
        bounds: Bounds of the next updates; the controller changes them.
        optimizer: The optimiser.
        average: Averages of the trained weights that are evaluated and saved; None without `ema_decay`.
    """

    def __init__(
        self,
        family: Family,
        reference: VelocityModel | None,
        method: Method,
        settings: TrainParams,
        processes: Processes,
        seed: int,
    ) -> None:
        """Create the optimiser.

        Args:
            family: Policy, prepared for training.
            reference: Reference policy; None: not needed.
            method: Settings of the variant.
            settings: `train` section of params.yaml.
            processes: Processes of this training.
            seed: Training seed.

        Raises:
            ConfigError: The package of the optimiser is not installed.
        """
        anchor = None if reference is None else reference.velocity
        self._family, self._policies = family, Policies(family.velocity, anchor)
        self._parameters = list(family.trainable_parameters())
        self._method, self._settings, self._processes, self._seed = method, settings, processes, seed
        self.selector = ChunkSelector(method)
        self.bounds = method.bounds
        self.optimizer = make_optimizer(
            settings.optimizer, self._parameters, method.variant.learning_rate, settings.weight_decay
        )
        self._can_go_on = True
        self.average: ExponentialMovingAverage | None = None
        self._sampler: ExponentialMovingAverage | None = None
        if (decay := settings.ema_decay) is not None:
            of_updates = warming(decay) if settings.ema_warmup else constant(decay)
            self.average = ExponentialMovingAverage(self._parameters, of_updates)
        if (own := method.variant.sampling_average) is not None:
            of_rollouts = rising(own.rate, own.limit, own.flat)
            self._sampler = ExponentialMovingAverage(self._parameters, of_rollouts)

    def learn(self, iteration: IterationState, check: Check) -> None:
        """Perform the remaining updates of the iteration.

        Args:
            iteration: Training data; the results are added to it.
            check: Called before each micro-batch; raises to abort, which leaves weights and optimiser as the last
                complete update made them.

        Raises:
            DataError: A ratio or the gradient is not finite.
        """
        start = time.perf_counter()
        updates = self.prepare(iteration, check)
        if not iteration.updates:
            iteration.metrics.update(self._fidelity_of_later(updates, iteration.number))
        for number in range(len(iteration.updates), len(updates)):
            made = self._step(updates[number], number, check)
            if self.average is not None:
                self.average.update((iteration.number - 1) * len(updates) + number + 1)
            iteration.updates.append(made)
            iteration.seconds += time.perf_counter() - start
            start = time.perf_counter()
        if self._sampler is not None:
            self._sampler.update(iteration.number * len(updates))

    def prepare(self, iteration: IterationState, check: Check) -> list[Update]:
        """Build the updates of the iteration.

        Args:
            iteration: Training data. With `train.old_log_probs: training`, or values of the forward process, its old
                log-probabilities are replaced in place, unless an update has already changed the policy.
            check: Called before each micro-batch; raises to abort.
        """
        updates = [self._update(iteration, number) for number in range(self._settings.updates_per_iteration)]
        forward = self._method.variant.likelihood != "transition"
        if not iteration.updates and (forward or self._settings.old_log_probs == "training"):
            kept = iteration.experience.trajectories.log_probs.view(len(updates), -1, self._method.grid.num_sde_steps)
            # With sampled transitions the first update takes all ratios as 1 and needs no old values.
            first = 0 if forward else 1
            with self.sampling():
                for number, update in enumerate(updates[first:], start=first):
                    kept[number] = update.reevaluate_old(self._processes, check)
        return updates

    def _fidelity_of_later(self, updates: Sequence[Update], number: int) -> dict[str, float]:
        """Fidelity of the later updates, if it is due: log-ratios that they would have if no weight had changed.

        No update may have changed the policy.
        """
        is_due = (number - 1) % self._settings.heldout.every == 0
        if not is_due or len(updates) == 1 or self._method.variant.likelihood == "nft":  # which has no ratio
            return {}
        new, old = zip(*(update.on_policy(self._processes) for update in updates[1:]), strict=True)
        own = torch.cat(new).cpu() - torch.cat(old)
        return fidelity_quantiles(torch.cat(self._processes.gather([own])), "fidelity_later")

    def sampling(self) -> AbstractContextManager[None]:
        """Context in which the policy has the weights that sample."""
        return nullcontext() if self._sampler is None else self._sampler.averaged()

    def _step(self, update: Update, number: int, check: Check) -> tuple[UpdateStats, float]:
        """Perform one update; return its statistics and the norm of its gradient before clipping."""
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

    def _update(self, iteration: IterationState, number: int) -> Update:
        trajectories = iteration.experience.trajectories
        size = len(trajectories.states) // self._settings.updates_per_iteration
        rows = slice(number * size, (number + 1) * size)
        part = trajectories.rows(rows)
        context = DrawContext(
            seed=self._seed,
            iteration=iteration.number,
            iterations=self._settings.iterations,
            update=number,
            rows=range(self._processes.index * size, (self._processes.index + 1) * size),
            total=size * self._processes.count,
        )
        # Consecutive rows of an update, of all processes, that share the forward process's times and noise.
        alike = self._settings.group_size if self._method.variant.forward_noise == "group" else 1
        batch = UpdateBatch(
            states=part.states,
            first_step=part.first_step,
            conditioning=iteration.experience.prompts.conditioning.rows(range(rows.start, rows.stop)),
            advantages=iteration.advantages[rows].to(torch.float32),
            old_log_probs=part.log_probs,
            old_means=part.means,
            chunks=self.selector.select(part, context),
            finals=part.finals,
            pairs=drawn_pairs(context, self._method, part.finals.shape[1:], alike),
        )
        return Update(self._policies, self._method, batch, self.bounds, self._settings.micro_batch_size)

    def state(self) -> dict[str, Any]:
        """Weights, state of the optimiser ({} if none was restored) and averages; the next update changes them."""
        return {
            "network": self._family.trainable_state(),
            "optimizer": self.optimizer.state_dict() if self._can_go_on else {},
            "averages": [None if each is None else each.state() for each in (self.average, self._sampler)],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`, with unsharded or stored tensors. The optimiser keeps the given ones.

        Without a state of the optimiser, {}, no update can follow.
        """
        self._family.load_trainable_state(state["network"])
        self._can_go_on = bool(optimizer := state["optimizer"])
        if optimizer:
            moments = {
                index: {name: self._part(index, value) for name, value in held.items()}
                for index, held in optimizer["state"].items()
            }
            self.optimizer.load_state_dict({**optimizer, "state": moments})
        for each, held in zip((self.average, self._sampler), state["averages"], strict=True):
            if each is not None:
                each.load_state(held)

    def _part(self, index: int, value: Any) -> Any:
        """This process's part of a value of the optimiser's state for one parameter."""
        parameter = self._parameters[index]
        return local_shard(parameter, value) if getattr(value, "shape", None) == parameter.shape else value


def tuning_of(settings: TrainParams) -> TuningOptions:
    """Options of `Family.prepare_training`."""
    lora = settings.lora
    return TuningOptions(
        lora_rank=None if lora is None else lora.rank,
        lora_alpha=1.0 if lora is None else lora.alpha,
        lora_targets=() if lora is None else lora.targets,
        gradient_checkpointing=settings.gradient_checkpointing,
        autocast=None,
        compiles=settings.compile,
        lora_precision="float32" if lora is None else lora.precision,
        guidance_gradient=settings.guidance_gradient,
    )


def prepared(
    family: Family, settings: TrainParams, seed: int, spread: Spread | None, start: Path | None, *, has_reference: bool
) -> BaseModel:
    """Prepare the family for training, and return the base model, with the reference policy if it is needed.

    Args:
        family: The base model.
        settings: Section `train` of params.yaml.
        seed: Training seed, of an adapter's initial weights.
        spread: Function that shards the weights.
        start: Saved policy with whose weights training starts; None: the base model's.
        has_reference: Whether a reference policy is needed.

    Raises:
        ConfigError: The settings do not match the model, or `start` is a transformer where an adapter is trained.
        DataError: `start` does not have the trained weights.
    """
    options = tuning_of(settings)
    state = None if start is None else family.start_state(start, options)
    family.prepare_training(options, derive_seed("adapter", seed), spread)
    base = BaseModel(family, has_reference=has_reference, adapts=settings.lora is not None)
    if state is not None:
        try:
            family.load_trainable_state(state)
        except DataError as error:
            raise DataError(
                f"train.start_from: {start}: must have the weights that are trained; an adapter has the rank and the "
                f"targets of train.lora. {error}"
            ) from error
    return base


def copied(value: Any) -> Any:
    """A copy of nested dicts and lists with tensors, in the CPU's memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copied(held) for key, held in value.items()}
    return [copied(held) for held in value] if isinstance(value, list) else value
