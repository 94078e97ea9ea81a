"""The toy checkpoint with a few encoded prompts, and a training task so small that an iteration takes a second."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from chunk_grpo.config import TrainParams, load_params
from chunk_grpo.core.chunking import listed_plan
from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.sde import diffusion_coefs
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.flux import FluxFamily
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.scorers.registry import Reward
from chunk_grpo.shapes.prompts import all_prompts
from chunk_grpo.training.trainer import Method, MetricRow, Task, Trainer
from chunk_grpo.training.update import Objective, StepGrid

ROOT = Path(__file__).parents[2]
OPTIONS = LoadOptions(str(ROOT / "assets" / "tiny-flux"), height=32, width=32, max_sequence_length=8)
TIMES = time_grid(5, 3.0)
GRID = StepGrid(TIMES, diffusion_coefs(TIMES, "flow", 0.7))
SMALL: dict[str, Any] = {
    "iterations": 3,
    "prompts_per_iteration": 2,
    "group_size": 3,
    "updates_per_iteration": 2,
    "micro_batch_size": 4,
    "checkpoint_every": 1,
    "kl_coef": 0.05,
}


@dataclass(frozen=True)
class Outcome:
    """What a training run ends with.

    Attributes:
        rows: its metrics.
        weights: the policy's state dict.
    """

    rows: list[MetricRow]
    weights: dict[str, torch.Tensor]

    def without_times(self) -> list[MetricRow]:
        """The metrics but for those that a clock gave."""
        return [row for row in self.rows if not row[1].startswith("seconds_")]


@pytest.fixture(scope="session")
def policy() -> Callable[[], FluxFamily]:
    """A function that loads the base policy anew."""
    return lambda: FluxFamily.load(OPTIONS, ("transformer", "vae"))


@pytest.fixture(scope="session")
def prompts() -> PromptSet:
    """Eight encoded prompts of several categories."""
    specs = all_prompts()[:: len(all_prompts()) // 8][:8]
    encoded = FluxFamily.load(OPTIONS, ("text",)).encode([spec.prompt for spec in specs])
    names = [f"p{number}" for number in range(8)]
    return PromptSet(names, [s.prompt for s in specs], [s.metadata() for s in specs], encoded)


@pytest.fixture(scope="session")
def task(prompts: PromptSet) -> Task:
    """Five prompts to train on and two to watch."""
    reward = Reward({"shapes-graded": 1.0, "shapes-vivid": 0.6})
    return Task(prompts.rows(range(5)), prompts.rows([5, 6]), reward, GRID)


@pytest.fixture(scope="session")
def method() -> Method:
    """Two chunks over four noisy steps, one of them trained for each image, drawn by weight."""
    objective = Objective(listed_plan((1, 3), 4), clip_range=1e-4, kl_coef=SMALL["kl_coef"])
    return Method(objective, torch.tensor([1.5, 0.8], dtype=torch.float64), fraction=0.5)


def settings(**changes: Any) -> TrainParams:
    """The `train` section of params.yaml, made small."""
    train = load_params(ROOT / "params.yaml").train
    heldout = train.heldout.model_copy(update={"every": 1, "num_prompts": 2, "images_per_prompt": 2})
    return train.model_copy(update={**SMALL, "heldout": heldout, **changes})


@pytest.fixture
def train(policy: Callable[[], FluxFamily], task: Task, method: Method) -> Callable[..., Outcome]:
    """Run training to its end, or until `stop_after` iterations, and return what it made."""

    def run(checkpoint: Path, seed: int = 0, stop_after: int | None = None, **changes: Any) -> Outcome:
        family = policy()
        trainer = Trainer(family, task, method, settings(**changes), seed, checkpoint)
        asked = iter(range(1, 1000))
        rows = trainer.run(lambda: next(asked) == stop_after)
        return Outcome(rows, {name: value.clone() for name, value in family.transformer.state_dict().items()})

    return run
