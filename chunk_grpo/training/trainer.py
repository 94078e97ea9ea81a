"""The training loop: rollout, reward, advantage, update, log, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from chunk_grpo.config import TrainParams
from chunk_grpo.core.dynamics import relative_l1
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.families.base import Family
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.progress import Meter
from chunk_grpo.training.advantages import advantages_of, of_all_processes, rewards_of
from chunk_grpo.training.base_distance import distance_from_base
from chunk_grpo.training.checkpoint import CheckpointStore, TrainingState
from chunk_grpo.training.controller import Controller, Verdict
from chunk_grpo.training.copies import Copies
from chunk_grpo.training.heldout import HeldoutEvaluation
from chunk_grpo.training.journal import Heading
from chunk_grpo.training.learner import IterationState, Learner, copied, prepared
from chunk_grpo.training.method import Method
from chunk_grpo.training.metrics import (
    MetricRow,
    StepSums,
    fidelity_metrics,
    reward_metrics,
    seconds_metrics,
    update_metrics,
    warn_of_no_advantage,
    warn_of_poor_fidelity,
)
from chunk_grpo.training.offloading import Offloading
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.rollouts import Experience, Iteration, SampledTrajectories, collect_experience
from chunk_grpo.training.run import RunPaths, TrainingData
from chunk_grpo.training.schedule import images_per_start, prompts_of_iteration, prompts_of_rows, starts_of_update
from chunk_grpo.training.scoring import UnscoredError, Waits
from chunk_grpo.training.sinks import open_sinks
from chunk_grpo.training.stopping import GivenUpError
from chunk_grpo.training.update import UpdateStats

_SAVE, _STOP = 1, 2
"""What a process asks of all of them in `Trainer._check`, and 0: nothing."""


class Trainer:
    """Trains the family's transformer in place with one method and one seed."""

    def __init__(
        self,
        family: Family,
        data: TrainingData,
        method: Method,
        settings: TrainParams,
        seed: int,
        paths: RunPaths,
        processes: Processes | None = None,
    ) -> None:
        """Prepare the model, and resume from the newest checkpoint if there is one.

        Args:
            family: Base policy, loaded with the parts "transformer" and "vae".
            data: Prompts and reward.
            method: Settings of the variant.
            settings: `train` section of params.yaml.
            seed: Training seed of the prompt order, rollouts, chunk draws and adapter.
            paths: Folders and names of the run.
            processes: Processes that train together; None: those that were started.

        Raises:
            ConfigError: The LoRA settings do not match the model, the policy to start from is a transformer where an
                adapter is trained, the trajectories of an update cannot be divided evenly among the processes, or a
                tracker cannot be opened.
            DataError: All checkpoints are refused, the policy to start from does not have the trained weights, or the
                journal cannot be written.
        """
        self._family, self._data, self._method, self._settings = family, data, method, settings
        self._seed = seed
        self._processes = processes or Processes(
            shards_weights=settings.shard_weights, keeps_shards_inside=settings.hybrid_sharding
        )
        self._starts()
        copies = None if paths.copies is None else Copies(paths.copies, paths.checkpoints, self._processes)
        self._checkpoints = CheckpointStore(
            paths.checkpoints, paths.identity, settings.checkpoints_kept, self._processes, copies
        )
        own, shard = method.variant, self._processes.shard
        self._base = prepared(family, settings, seed, shard, paths.start, has_reference=own.has_reference)
        family.use_network(self._processes.wrap(family.transformer))
        self._learner = Learner(family, self._base.reference, method, settings, self._processes, seed)
        held_back = settings.heldout.controller if method.variant.controlled else None
        self._controller = Controller(settings.heldout.patience, held_back, method.bounds)
        self._best_state: dict[str, Any] = {}
        self._offloading = Offloading(family, settings.offload)
        self._heldout = HeldoutEvaluation(data.heldout, data.reward, data.unseen, settings, self._processes)
        self._by_step = StepSums(settings.updates_per_iteration, method.grid.num_sde_steps)
        self._rows: list[MetricRow] = []
        self._done = 0
        self._unfinished: IterationState | None = None
        self._sampled: list[SampledTrajectories] = []  # batches of an iteration that is not scored
        self._waits, self._stop_requested = Waits(self._is_stopping, self._processes.by_all), False
        self._saved_at, self._is_save_due = time.monotonic(), False
        with self._checkpoints.fitting():
            self._resume()
        heading = Heading(paths.identity, seed, settings.iterations, self._done)
        first = self._done if self._is_evaluation_due() else self._done + 1
        self._sinks = open_sinks(paths, heading, self._rows, first, is_main=self._processes.is_main)

    def run(self, should_stop: Callable[[], bool]) -> list[MetricRow]:
        """Train to the last iteration or to early stopping, and return all metrics.

        Args:
            should_stop: Polled often. When it returns True, a checkpoint is saved and TransientError raised.

        Raises:
            TransientError: Stopped on request, or a scorer is away; a checkpoint is saved, and a later run resumes.
            DataError: Latents, rewards, ratios or gradients are not finite.
        """
        self._should_stop = should_stop
        total, is_finished = self._settings.iterations, False
        try:
            if reason := self._ended_before(total):
                self._save()
                self._checkpoints.settle()
                raise TransientError(
                    f"{reason} after iteration {self._done} of {total}; kept in {self._checkpoints.newest_path()}. "
                    "Run the same command again; training resumes from there."
                )
            self._checkpoints.settle()
            is_finished = True
        except DataError as error:
            self._checkpoints.wait(together=error.process is not None)
            process = self._processes.index if error.process is None else error.process
            where = f"iteration {self._done + 1}, process {process}"
            last = self._checkpoints.newest_path() or "the base model"
            raise DataError(f"{where}: {error} The last good checkpoint is {last}.") from error
        finally:
            self._checkpoints.wait()
            for sink in self._sinks:
                sink.close(is_finished=is_finished)
        return self._rows

    def _ended_before(self, total: int) -> str:
        """Train to iteration `total` or to early stopping; what ended it before, or ""."""
        try:
            with Meter(f"training, seed {self._seed}", total, self._done) as meter:
                self._evaluate_if_due()
                while self._done < total and not self._controller.has_ended:
                    self._iterate(self._done + 1)
                    self._evaluate_if_due()
                    meter.advance(note=self._reward_so_far())
                    self._save_if_due()
                self._record(self._done, self._metrics_at_end())
        except GivenUpError:
            return "stopped"
        except UnscoredError as error:
            return f"{error} Stopped"
        return ""

    def save_policies(self, folder: Path) -> None:
        """Write the trained policy to `folder`/transformer and, with `keep_best`, the best one to `folder`/best.

        All processes must call; the main one writes.
        """
        with self._averaged():
            trained = self._family.policy_state()
            self._processes.by_main(lambda: self._family.save_transformer(trained, folder / "transformer"))
        best = self._checkpoints.best() if self._processes.is_main else None
        if best is not None:
            self._family.save_transformer(best, folder / "best")

    def _iterate(self, iteration: int) -> None:
        """Perform an iteration, or the rest of a resumed one: rollout, reward, advantage, update, log."""
        if self._unfinished is None:
            experience = self._roll_out(iteration)
            images = images_per_start(self._method.variant.branching)
            everybody, own = of_all_processes(experience, self._starts(), images, self._processes)
            weights = self._data.reward.weights
            rewards = rewards_of(everybody, weights)  # [Q, G]
            advantages = advantages_of(everybody, weights, self._method)  # [B] or [B, K]
            warn_of_no_advantage(iteration, advantages)
            metrics = reward_metrics(rewards, everybody.scores, advantages) | self._follow(experience)
            self._unfinished = IterationState(iteration, experience, advantages[own], metrics)
        self._learner.learn(self._unfinished, self._check)
        self._log(self._unfinished)
        self._unfinished, self._done = None, iteration

    def _roll_out(self, iteration: int) -> Experience:
        """Sample and score this process's images with the sampling policy."""
        self._family.transformer.eval()
        with self._offloading.in_use(), self._learner.sampling():
            return collect_experience(
                self._family,
                self._method,
                Iteration(iteration, self._prompts_of(iteration), self._starts()),
                self._data.reward,
                self._settings,
                self._seed,
                self._check,
                self._waits,
                self._sampled,
            )

    def _prompts_of(self, iteration: int) -> PromptSet:
        """Prompts of an iteration, of all processes; those of an update are consecutive."""
        count = self._settings.prompts_per_iteration
        picked = prompts_of_iteration(iteration - 1, count, len(self._data.prompts), self._seed)
        return self._data.prompts.rows(picked)

    def _starts(self) -> list[int]:
        """Numbers of this process's starts: an equal part of each update's."""
        updates = self._settings.updates_per_iteration
        share = starts_of_update(self._settings, self._method.variant.branching)
        own = self._processes.share_of(share)
        return [update * share + start for update in range(updates) for start in own]

    def _follow(self, experience: Experience) -> dict[str, float]:
        """Recompute the chunk plan if due, and return its metrics; empty without `replan_every`."""
        if self._method.variant.replan_every is None:
            return {}
        curves = relative_l1(experience.trajectories.states)[:, : self._method.grid.num_sde_steps]  # [B, N]
        everybody = torch.cat(self._processes.gather([curves.cpu()]))  # [B of all processes, N]
        return self._learner.selector.follow(everybody.mean(dim=0).tolist(), self._done + 1)

    def _log(self, state: IterationState) -> None:
        """Collect and log the metrics of an iteration."""
        iteration, experience = state.number, state.experience
        own, norms = zip(*state.updates, strict=True)
        stats = [UpdateStats.of_all(parts) for parts in zip(*self._processes.gather([own]), strict=True)]
        self._by_step.add(stats)
        fidelity = fidelity_metrics(stats[0], self._method.grid.num_sde_steps)
        if iteration == 1:
            warn_of_poor_fidelity({**state.metrics, **fidelity}, self._method.variant.limits)
        seconds = seconds_metrics({**experience.seconds, "update": state.seconds}, len(experience.prompts))
        metrics = {**state.metrics, **update_metrics(stats, norms), **fidelity, **seconds}
        self._record(iteration, metrics)

    def _metrics_at_end(self) -> dict[str, float]:
        """Metrics of the whole training and of its last policy. No checkpoint has them: longer runs go on from it."""
        grid, settings, by = self._method.grid, self._settings, (self._processes, self._check)
        size, seed = settings.rollout_batch_size, settings.heldout.seed
        with self._averaged():
            distance = distance_from_base(self._base, grid, self._data.heldout, size, seed, *by)
        by_step = {} if self._method.variant.likelihood == "nft" else self._by_step.metrics()  # has no ratio
        return by_step if distance is None else by_step | {"distance_from_base": distance}

    def _record(self, iteration: int, metrics: Mapping[str, float], images: NDArray[np.uint8] | None = None) -> None:
        """Store metrics, and write them to trackers and journal."""
        self._rows += [(iteration, name, value) for name, value in metrics.items()]
        for sink in self._sinks:
            sink.log(iteration, metrics, images)

    def _reward_so_far(self) -> str:
        """Reward of the last iteration, for the progress line."""
        last = {name: value for iteration, name, value in self._rows if iteration == self._done}
        return f"reward {last['reward_mean']:.3f} +- {last['reward_std']:.3f}"

    def _is_evaluation_due(self) -> bool:
        """Whether a held-out evaluation is due and was not already done before a stop."""
        measured = any(row[:2] == (self._done, "heldout_reward") for row in self._rows)
        return self._is_measured(self._done) and not measured

    def _is_measured(self, iteration: int) -> bool:
        """Whether the policy is measured on held-out prompts after an iteration."""
        return iteration % self._settings.heldout.every == 0 or iteration == self._settings.iterations

    def _evaluate_if_due(self) -> None:
        """Evaluate the policy on the held-out prompts if due."""
        if not self._is_evaluation_due():
            return
        with self._averaged():
            with self._offloading.in_use():
                evaluated = self._heldout.evaluate(self._family, self._method.grid.times, self._check, self._waits)
            verdict = self._controller.judge(self._processes.gather([evaluated.decisive])[0])
            if self._settings.heldout.keep_best and verdict == "best":
                best = self._family.policy_state()
                self._processes.by_main(lambda: self._checkpoints.keep_best(best))
        if self._controller.goes_back:
            self._keep_or_go_back(verdict)
        metrics = evaluated.metrics | self._controller.metrics()
        self._record(self._done, metrics, evaluated.pictures)

    def _keep_or_go_back(self, verdict: Verdict) -> None:
        """Keep the best state, or go back to it after a fall; take the controller's bounds."""
        if verdict == "best":
            self._best_state = copied(self._learner.state())
        elif verdict == "fallen":
            self._learner.load_state(copied(self._best_state))
        self._learner.bounds = self._controller.bounds

    def _averaged(self) -> AbstractContextManager[None]:
        """Context in which the policy has its averaged weights, if `ema_decay` is set."""
        average = self._learner.average
        return nullcontext() if average is None else average.averaged()

    def _check(self) -> None:
        """Raise GivenUpError if any process received a stop request; learn if the main one's clock asks to save."""
        asked = _STOP if self._is_stopping() else _SAVE if self._is_save_late() else 0
        asked = self._processes.largest(asked)
        if asked == _STOP:
            raise GivenUpError
        self._is_save_due = self._is_save_due or asked == _SAVE

    def _is_save_late(self) -> bool:
        """Whether this is the main process, and `checkpoint_minutes` have passed since the last checkpoint."""
        minutes = self._settings.checkpoint_minutes
        if minutes is None or not self._processes.is_main:
            return False
        return time.monotonic() - self._saved_at >= 60 * minutes

    def _is_stopping(self) -> bool:
        """Whether this process received a stop request, now or at an earlier look."""
        self._stop_requested = self._stop_requested or self._should_stop()
        return self._stop_requested

    def _resume(self) -> None:
        """Restore the newest checkpoint that a run of this length has; there may be later ones of a longer run."""
        last = self._settings.iterations
        state = self._checkpoints.latest(last)
        if state is not None and not self._goes_on_from(state):
            state = self._checkpoints.latest(state.iteration - 1)
        if state is None:
            return
        found = {"network": state.network, "optimizer": state.optimizer, "averages": state.extra["averages"]}
        self._learner.load_state(found)
        self._learner.selector.load_state(state.extra["chunks"])
        self._controller.load_state(state.extra["controller"])
        self._by_step.load_state(state.extra["by_step"])
        self._best_state, self._learner.bounds = state.extra["best"], self._controller.bounds
        self._rows = [(i, n, v) for i, n, v in state.rows if not n.startswith("heldout") or self._is_measured(i)]
        self._done = state.iteration
        if state.extra["unfinished"] is not None:
            self._resume_unfinished(state.extra["unfinished"], state.iteration + 1)
        if len(state.extra["sampled"]) == self._processes.count:  # or the batches are sampled again
            own, device = state.extra["sampled"][self._processes.index], self._family.device
            self._sampled = [SampledTrajectories.from_state(batch, device) for batch in own]

    def _goes_on_from(self, state: TrainingState) -> bool:
        """Whether a run of this length can: it needs the optimiser's state, unless nothing of it is left to train."""
        if state.iteration == self._settings.iterations:
            return state.extra["unfinished"] is None  # or it has begun an iteration after the last one
        return bool(state.optimizer)

    def _resume_unfinished(self, states: list[dict[str, Any]], iteration: int) -> None:
        """Restore an iteration in progress, each process with its own trajectories; as many processes as before."""
        if len(states) != self._processes.count:
            raise ConfigError(
                f"the run was stopped within iteration {iteration} with {len(states)} processes, and now has "
                f"{self._processes.count}: start as many as before, or delete {self._checkpoints.newest_path()}"
            )
        rows = prompts_of_rows(self._starts(), self._settings.group_size, self._method.variant.branching)
        prompts, own = self._prompts_of(iteration).rows(rows), states[self._processes.index]
        self._unfinished = IterationState.from_state(own, prompts, self._family.device)

    def _save_if_due(self) -> None:
        is_last = self._done == self._settings.iterations or self._controller.has_ended
        is_due = self._is_save_due or self._done % (self._settings.checkpoint_every or self._done + 1) == 0
        self._checkpoints.finish_if_written()
        if is_due or is_last:
            start = time.monotonic()
            self._save(copied=self._settings.keep_state or not is_last)
            self._saved_at, self._is_save_due = time.monotonic(), False
            self._rows.append((self._done, "seconds_checkpoint", self._saved_at - start))

    def _save(self, *, copied: bool = True) -> None:
        """Begin to save a checkpoint; without the optimiser's state if no iteration will follow.

        Random streams are functions of the iteration and have no state.
        """
        unfinished = None if self._unfinished is None else self._processes.gather([self._unfinished.state()])
        trained = self._learner.state()
        extra = {
            "chunks": self._learner.selector.state(),
            "averages": trained["averages"],
            "unfinished": unfinished,
            "sampled": self._processes.gather([[batch.state() for batch in self._sampled]]),
            "controller": self._controller.state(),
            "by_step": self._by_step.state(),
            "best": self._best_state,
        }
        goes_on = self._settings.keep_state or self._done < self._settings.iterations
        optimizer = trained["optimizer"] if goes_on else {}
        state = TrainingState(self._done, trained["network"], optimizer, self._rows, extra)
        self._checkpoints.begin(state, copied=copied)
