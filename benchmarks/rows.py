"""Rows of the benchmark's table: the reference, ours, and ours with one optimisation off.

Some optimisations are switched off by a setting. Those without a setting are switched off by patching the library while
the row runs.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from benchmarks.accounts import Account, accounting
from benchmarks.configurations import Configuration
from benchmarks.held import held_gradient
from benchmarks.reference import ReferenceTrainer
from chunk_grpo.config import TrainParams
from chunk_grpo.families.flux import FluxFamily
from chunk_grpo.training import rollouts
from chunk_grpo.training import update as training_update
from chunk_grpo.training.chunk_selection import TrainedChunks
from chunk_grpo.training.method import Method
from chunk_grpo.training.packing import Packing, pack
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.run import RunPaths, TrainingData
from chunk_grpo.training.stopping import Check
from chunk_grpo.training.trainer import Trainer
from chunk_grpo.training.update import Update, UpdateStats

SEED, ITERATION = 0, 1
REFERENCE, OURS = "reference", "ours"


@contextmanager
def first_pass_for_all_chunks() -> Iterator[None]:
    """Always compute ratios in a separate pass, even if a chunk fits into a micro-batch."""

    def divided(chunks: TrainedChunks, size: int) -> Packing:
        return Packing(pack(chunks, size).all, ())

    with patch.object(training_update, "pack", divided):
        yield


@contextmanager
def first_pass_always() -> Iterator[None]:
    """Run the pass for ratios even on policy, where every ratio is 1."""
    shipped = Update.accumulate_gradient

    def gradient(update: Update, processes: Processes, *, on_policy: bool, check: Check) -> UpdateStats:
        return shipped(update, processes, on_policy=False, check=check)

    with first_pass_for_all_chunks(), patch.object(Update, "accumulate_gradient", gradient):
        yield


@contextmanager
def activations_held() -> Iterator[None]:
    """Replace the update by plain autograd over chunks."""
    with patch.object(Update, "accumulate_gradient", held_gradient):
        yield


@contextmanager
def first_evaluations_apart() -> Iterator[None]:
    """Evaluate rows with equal start noise separately at the first step too."""
    with patch.object(rollouts._Sampling, "_starts_alike", False):
        yield


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: Name of the row: the optimisation that is off.
        rollout_batch: Trajectories per pass of the rollout; None: the configuration's micro-batch.
        update_batch: Items per pass of the update; None: the configuration's micro-batch.
        settings: Changed keys of `train`.
        replaced: Context manager that patches the library.
    """

    name: str
    rollout_batch: int | None = None
    update_batch: int | None = None
    settings: Mapping[str, bool] = field(default_factory=dict)
    replaced: Callable[[], AbstractContextManager[None]] = nullcontext


ROWS = (
    Row(REFERENCE),
    Row(OURS),
    Row("rollouts one by one", rollout_batch=1),
    Row("update items one by one", update_batch=1),
    Row("first pass for all chunks", replaced=first_pass_for_all_chunks),
    Row("first pass also on policy", replaced=first_pass_always),
    Row("reward not in background", settings={"reward_in_background": False}),
    Row("activations of chunks held", replaced=activations_held),
    Row("ours, one start noise a group", settings={"same_noise_in_group": True}),
    Row(
        "- first evaluation not shared",
        settings={"same_noise_in_group": True},
        replaced=first_evaluations_apart,
    ),
)


@dataclass(frozen=True)
class Measurement:
    """Cost of one iteration.

    Attributes:
        seconds: Seconds of the iteration.
        rollout: Seconds of drawing trajectories.
        reward: Seconds of decoding and scoring on the main thread, and of waiting for the background thread.
        update: Seconds of the updates.
        model: Seconds in forward and backward passes of the velocity network; part of `rollout` and `update`.
        forward_states: Number of states whose velocity was computed.
        forward_calls: Number of velocity calls.
        backward_states: Number of states with a backward pass.
        backward_calls: Number of calls of backward.
    """

    seconds: float
    rollout: float
    reward: float
    update: float
    model: float
    forward_states: int
    forward_calls: int
    backward_states: int
    backward_calls: int

    @property
    def outside(self) -> float:
        """Share of the time outside model, decoding and reward."""
        return (self.seconds - self.model - self.reward) / self.seconds


class OneIteration(Trainer):
    """Our trainer, one iteration at a time, without held-out measurements and checkpoints."""

    def __init__(
        self,
        family: FluxFamily,
        data: TrainingData,
        method: Method,
        settings: TrainParams,
        folder: Path,
        rollout_batch: int,
    ) -> None:
        """Prepare training; `settings.micro_batch_size` applies to the update, `rollout_batch` to the rollout."""
        super().__init__(
            family, data, method, settings, SEED, RunPaths(folder, "benchmark", folder, "benchmark")
        )
        # The learner has read its settings already; only the rollout reads this size.
        self._settings = settings.model_copy(update={"micro_batch_size": rollout_batch})
        self._should_stop = lambda: False

    def iterate(self, iteration: int) -> dict[str, float]:
        """Run one iteration; return the trainer's seconds of "rollout", "waiting_for_reward" and "update"."""
        self._iterate(iteration)
        prefix = "seconds_"
        return {name[len(prefix) :]: value for _, name, value in self._rows if name.startswith(prefix)}


def measure(row: Row, configuration: Configuration, data: TrainingData) -> Measurement:
    """Measure the row's first iteration from the base policy; it is always the same, so only the machine varies."""
    with TemporaryDirectory() as folder, accounting() as account, row.replaced():
        trainer = make_trainer(row, configuration, data, Path(folder))
        gc.collect()
        start = time.perf_counter()
        parts = trainer.iterate(ITERATION)
        return _measurement(time.perf_counter() - start, parts, account)


def make_trainer(
    row: Row, configuration: Configuration, data: TrainingData, folder: Path
) -> ReferenceTrainer | OneIteration:
    """The row's trainer with a newly loaded policy."""
    family, method = configuration.family(), configuration.method()
    settings = configuration.params().train.model_copy(update=dict(row.settings))
    if row.name == REFERENCE:
        return ReferenceTrainer(family, data.prompts, data.reward, method, settings, SEED)
    rollout_batch = row.rollout_batch or settings.micro_batch_size
    if row.update_batch is not None:
        settings = settings.model_copy(update={"micro_batch_size": row.update_batch})
    return OneIteration(family, data, method, settings, folder, rollout_batch)


def _measurement(seconds: float, parts: Mapping[str, float], account: Account) -> Measurement:
    spent = account.seconds
    return Measurement(
        seconds=seconds,
        rollout=parts["rollout"] - spent["reward"],
        reward=spent["reward"] + parts.get("waiting_for_reward", 0.0),
        update=parts["update"],
        model=spent["velocity"] + spent["backward"],
        forward_states=account.forward_states,
        forward_calls=account.forward_calls,
        backward_states=account.backward_states,
        backward_calls=account.backward_calls,
    )
