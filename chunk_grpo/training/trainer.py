"""The training loop: rollout, reward, advantage, update, log, checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor

from chunk_grpo.config import TrainParams
from chunk_grpo.core.advantages import degenerate_groups, group_advantages
from chunk_grpo.core.chunk_sampling import select_chunks
from chunk_grpo.errors import DataError, TransientError
from chunk_grpo.families.base import Family
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.progress import Meter
from chunk_grpo.scorers.registry import Reward
from chunk_grpo.seeding import generator
from chunk_grpo.training.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from chunk_grpo.training.rollouts import Experience, RolloutSettings, gather, heldout_scores
from chunk_grpo.training.schedule import prompts_of_iteration
from chunk_grpo.training.update import Objective, StepGrid, UpdateBatch, UpdateStats, accumulate_gradient

MetricRow = tuple[int, str, float]
"""(iteration, metric, value); iteration 0 is the base policy."""


@dataclass(frozen=True)
class Method:
    """What makes one variant differ from another.

    Attributes:
        objective: Chunks, clip range and KL weight.
        chunk_weights: Eq. (16) weights [K] for the draw of chunks, or None for a uniform draw.
        fraction: Share of the chunks trained for each sample and update.
    """

    objective: Objective
    chunk_weights: Tensor | None
    fraction: float


@dataclass(frozen=True)
class Task:
    """What is trained on, and on what it is watched: prompts, held-out prompts, reward and sampling grid."""

    prompts: PromptSet
    heldout: PromptSet
    reward: Reward
    grid: StepGrid


class Trainer:
    """Trains the family's transformer in place with one method and one seed."""

    def __init__(
        self, family: Family, task: Task, method: Method, settings: TrainParams, seed: int, checkpoint: Path
    ) -> None:
        """Prepare, and resume from `checkpoint` when there is one.

        Args:
            family: The base policy, loaded with the parts "transformer" and "vae".
            task: Prompts, reward and grid.
            method: The variant.
            settings: The `train` section of params.yaml.
            seed: Of every random stream.
            checkpoint: File that is written as training goes on.
        """
        self._family, self._task, self._method, self._settings = family, task, method, settings
        self._seed, self._checkpoint = seed, checkpoint
        self._accelerator = Accelerator()
        self._reference = family.frozen_copy() if method.objective.kl_coef > 0 else None
        family.transformer.requires_grad_(True)
        self._parameters = list(family.trainable_parameters())
        optimizer = torch.optim.AdamW(
            self._parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self._optimizer = self._accelerator.prepare(optimizer)
        self._rows: list[MetricRow] = []
        self._done = 0
        self._resume()

    def run(self, should_stop: Callable[[], bool]) -> list[MetricRow]:
        """Train to the last iteration and return all metrics.

        Args:
            should_stop: Asked after each iteration; when true, a checkpoint is saved and TransientError raised.

        Raises:
            TransientError: Told to stop; the same call goes on later.
            DataError: Latents, rewards or gradients are not finite.
        """
        total = self._settings.iterations
        if self._done == 0:
            self._rows += self._watch(0)
        with Meter(f"training, seed {self._seed}", total, self._done) as meter:
            for iteration in range(self._done + 1, total + 1):
                rows = self._iterate(iteration)
                self._rows += rows
                self._done = iteration
                if iteration % self._settings.heldout.every == 0 or iteration == total:
                    self._rows += self._watch(iteration)
                reward = next(value for _, metric, value in rows if metric == "reward_mean")
                meter.advance(note=f"reward {reward:.3f}")
                stop = should_stop()
                if stop or iteration % self._settings.checkpoint_every == 0 or iteration == total:
                    self._save()
                if stop and iteration < total:
                    raise TransientError(
                        f"stopped after iteration {iteration} of {total}; run again to go on"
                    )
        return self._rows

    def _iterate(self, iteration: int) -> list[MetricRow]:
        """One rollout and its updates."""
        settings = self._settings
        picked = prompts_of_iteration(
            iteration - 1, settings.prompts_per_iteration, len(self._task.prompts), self._seed
        )
        rollout_settings = RolloutSettings(
            settings.group_size, settings.micro_batch_size, settings.same_noise_in_group, self._seed
        )
        self._family.transformer.eval()
        experience = gather(
            self._family,
            self._task.grid,
            self._task.prompts.rows(picked),
            self._task.reward,
            rollout_settings,
            iteration,
        )
        advantages = group_advantages(experience.rewards, clip=settings.advantage_clip)
        start = time.perf_counter()
        updates = [
            self._update(experience, advantages, iteration, number)
            for number in range(settings.updates_per_iteration)
        ]
        seconds = time.perf_counter() - start
        return [(iteration, name, value) for name, value in _metrics(experience, updates, seconds).items()]

    def _update(
        self, experience: Experience, advantages: Tensor, iteration: int, number: int
    ) -> tuple[UpdateStats, float]:
        """One optimiser step on this update's share of the prompts; returns the statistics and the gradient's norm."""
        settings, objective = self._settings, self._method.objective
        share = experience.rewards.shape[0] // settings.updates_per_iteration * settings.group_size
        rows = slice(number * share, (number + 1) * share)
        selected = select_chunks(
            objective.plan,
            self._method.fraction,
            self._method.chunk_weights,
            share,
            generator("chunks", self._seed, iteration, number),
        )
        device = experience.states.device
        batch = UpdateBatch(
            states=experience.states[rows],
            conditioning=experience.prompts.conditioning.rows(range(rows.start, rows.stop)),
            advantages=advantages.flatten()[rows].to(device, torch.float32),
            old_log_probs=experience.log_probs[rows],
            selected=selected.to(device),
        )
        self._optimizer.zero_grad()
        stats = accumulate_gradient(
            self._family.velocity,
            self._reference.velocity if self._reference is not None else None,
            self._task.grid,
            batch,
            objective,
            on_policy=number == 0,
            micro_batch_size=settings.micro_batch_size,
            backward=self._accelerator.backward,
        )
        norm = float(self._accelerator.clip_grad_norm_(self._parameters, settings.max_grad_norm))
        if not math.isfinite(norm):
            raise DataError(
                f"iteration {iteration}, update {number}: the gradient is not finite. The last good checkpoint is "
                f"{self._checkpoint}; lower train.learning_rate and run again."
            )
        self._optimizer.step()
        return stats, norm

    def _watch(self, iteration: int) -> list[MetricRow]:
        """Mean reward on held-out prompts with fixed noise."""
        settings = self._settings.heldout
        scores = heldout_scores(
            self._family,
            self._task.grid.times,
            self._task.heldout,
            settings.images_per_prompt,
            self._task.reward,
            settings.seed,
            self._settings.micro_batch_size,
        )
        rows: list[MetricRow] = [(iteration, "heldout_reward", float(scores.values.mean()))]
        rows += [
            (iteration, f"heldout/{name}", float(values.mean())) for name, values in scores.details.items()
        ]
        return rows

    def _resume(self) -> None:
        state = load_checkpoint(self._checkpoint)
        if state is not None:
            self._family.transformer.load_state_dict(state.network)
            self._optimizer.load_state_dict(state.optimizer)
            self._rows, self._done = [(i, n, v) for i, n, v in state.rows], state.iteration

    def _save(self) -> None:
        save_checkpoint(
            self._checkpoint,
            TrainingState(
                self._done, self._family.transformer.state_dict(), self._optimizer.state_dict(), self._rows
            ),
        )


def _metrics(
    experience: Experience, updates: list[tuple[UpdateStats, float]], seconds_update: float
) -> dict[str, float]:
    """The numbers of one iteration, by name."""
    stats = [stat for stat, _ in updates]
    rewards = experience.rewards
    metrics = {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "group_reward_std": float(rewards.std(dim=1).mean()),
        "degenerate_groups": float(degenerate_groups(rewards).sum()),
        "ratio_mean": sum(s.ratio_mean for s in stats) / len(stats),
        "ratio_min": min(s.ratio_min for s in stats),
        "ratio_max": max(s.ratio_max for s in stats),
        "clip_fraction": sum(s.clip_fraction for s in stats) / len(stats),
        "kl": sum(s.kl for s in stats) / len(stats),
        "trained_steps": float(sum(s.trained_steps for s in stats)),
        "grad_norm": sum(norm for _, norm in updates) / len(updates),
        "seconds_rollout": experience.seconds_rollout,
        "seconds_reward": experience.seconds_reward,
        "seconds_update": seconds_update,
    }
    metrics.update({f"reward/{name}": float(values.mean()) for name, values in experience.parts.items()})
    return metrics
