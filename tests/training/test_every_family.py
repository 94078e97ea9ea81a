"""Each family trains in two processes with its weights sharded, and stops and resumes to the same bits.

Its network is small and random, so its images mean nothing. Both processes are started once and do all jobs.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.config.families import family_names
from chunk_grpo.families.prompts import PromptSet
from tests.families.parity import module_of, save_checkpoints
from tests.training.conftest import CHUNK_WS, LORA
from tests.training.worker import Job, do, result, run_pair

SMALL: dict[str, Any] = {
    "iterations": 2,
    "prompts_per_iteration": 2,
    "group_size": 2,
    "updates_per_iteration": 1,
    "micro_batch_size": 3,
    "shard_weights": True,
    "gradient_checkpointing": True,
}
NAMES = family_names()

pytestmark = [pytest.mark.slow]


def jobs_of(name: str, checkpoint: Path) -> dict[str, Job]:
    """All weights and an adapter, undisturbed; all weights, stopped and resumed."""
    scale = module_of(name).CASE.scales[-1]
    found = {}
    for kind, train in (("full", SMALL), ("lora", SMALL | LORA)):
        job = Job(CHUNK_WS, train, f"{name}-{kind}", sgd=True, cfg_scale=scale, family=name, checkpoint=str(checkpoint))
        found[f"{name}-{kind}"] = job
    again = replace(found[f"{name}-full"], folder=f"{name}-stopped")
    return found | {f"{name}-stopped": replace(again, stop_at=10), f"{name}-resumed": again}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    folders = {name: tmp_path_factory.mktemp(name) for name in NAMES}
    found: dict[str, Job] = {}
    for name, folder in folders.items():
        found |= jobs_of(name, save_checkpoints(name, folder)["sharded"])
    return found


@pytest.fixture(scope="module")
def folder(jobs: dict[str, Job], prompts: PromptSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes saw of all jobs."""
    found = tmp_path_factory.mktemp("pair")
    run_pair(jobs, prompts, found)
    return found


@pytest.mark.parametrize("kind", ["full", "lora"])
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_find_the_gradient_of_one(name, kind, folder, jobs, prompts, tmp_path):
    one = do(jobs[f"{name}-{kind}"], prompts, tmp_path)
    for rank in range(2):
        seen = result(folder, f"{name}-{kind}", rank)
        assert one.error == seen.error == ""
        assert seen.held == pytest.approx(0.5, abs=0.05)
        assert float((seen.gradient - one.gradient).norm() / one.gradient.norm()) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_a_stopped_training_is_resumed_to_the_same_bits(name, folder):
    for rank in range(2):
        whole, stopped, resumed = (result(folder, f"{name}-{end}", rank) for end in ("full", "stopped", "resumed"))
        assert stopped.error.startswith("TransientError: stopped after iteration")
        assert resumed.error == ""
        assert resumed.has_weights_of(whole)
