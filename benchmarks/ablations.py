"""Rows of the training benchmark: the reference, ours, and ours with one optimisation off."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.reference import ReferenceTrainer
from benchmarks.workloads import Workload
from chunk_grpo.config import TrainParams
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.planning.counters import counting
from chunk_grpo.training.method import Method
from chunk_grpo.training.run import RunPaths, TrainingData
from chunk_grpo.training.trainer import Trainer

SEED, ITERATION = 0, 1
REFERENCE, OURS = "reference", "ours"


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    name: str
    """Name of the row: the optimisation that is off."""
    rollout_batch: int | None = None
    """Trajectories per pass of the rollout; None: the workload's micro-batch."""
    update_batch: int | None = None
    """Items per pass of the update; None: the workload's micro-batch."""
    background: bool = True
    """Whether the reward is computed in the background."""


ROWS = (
    Row(REFERENCE),
    Row(OURS),
    Row("rollouts one by one", rollout_batch=1),
    Row("update items one by one", update_batch=1),
    Row("reward not in background", background=False),
)


@dataclass(frozen=True)
class Cost:
    """Cost of one iteration."""

    seconds: float
    """Seconds of the iteration."""
    rollout: float
    """Seconds of drawing trajectories."""
    update: float
    """Seconds of the updates."""
    reward: float
    """Seconds of decoding and scoring on the main thread, and of waiting for the background thread."""
    outside: float
    """Share of the time outside network, decoding and reward."""
    forward_states: int
    """Number of states whose velocity was computed."""
    forward_calls: int
    """Number of velocity calls."""
    backward_states: int
    """Number of states with a backward pass."""


class OneIteration(Trainer):
    """Our trainer, one iteration at a time, without held-out measurements and checkpoints."""

    def __init__(
        self,
        family: FluxFamily,
        data: TrainingData,
        method: Method,
        settings: TrainParams,
        folder: Path,
    ) -> None:
        """Prepare training."""
        paths = RunPaths(folder, "benchmark", folder, "benchmark")
        super().__init__(family, data, method, settings, SEED, paths)
        self._should_stop = lambda: False

    def iterate(self, iteration: int) -> dict[str, float]:
        """Run one iteration; return the trainer's seconds of "rollout", "waiting_for_reward" and "update"."""
        self._iterate(iteration)
        prefix = "seconds_"
        return {name[len(prefix) :]: value for _, name, value in self._rows if name.startswith(prefix)}


def measure(row: Row, workload: Workload, data: TrainingData) -> Cost:
    """Measure the row's first iteration from the base policy; it is always the same, so only the machine varies."""
    with TemporaryDirectory() as folder, counting() as counters:
        trainer = make_trainer(row, workload, data, Path(folder))
        gc.collect()
        start = time.perf_counter()
        parts = trainer.iterate(ITERATION)
        seconds, spent = time.perf_counter() - start, counters.seconds
    reward = spent["reward"] + parts.get("waiting_for_reward", 0.0)
    return Cost(
        seconds=seconds,
        rollout=parts["rollout"] - spent["reward"],
        update=parts["update"],
        reward=reward,
        outside=(seconds - spent["velocity"] - spent["backward"] - reward) / seconds,
        forward_states=counters.forward_states,
        forward_calls=counters.forward_calls,
        backward_states=counters.backward_states,
    )


def make_trainer(
    row: Row, workload: Workload, data: TrainingData, folder: Path
) -> ReferenceTrainer | OneIteration:
    """The row's trainer with a newly loaded policy."""
    family, method, settings = workload.family(), workload.method(), workload.params().train
    if row.name == REFERENCE:
        return ReferenceTrainer(family, data.prompts, data.reward, method, settings, SEED)
    changed = {
        "rollout_batch_size": row.rollout_batch or settings.rollout_batch_size,
        "micro_batch_size": row.update_batch or settings.micro_batch_size,
        "reward_in_background": row.background,
    }
    return OneIteration(family, data, method, settings.model_copy(update=changed), folder)
