"""Two processes, each with its own GPU over NCCL, train as one does; on the CPU over gloo."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chunk_grpo.families.prompts import PromptSet
from tests.training.conftest import CHUNK_WS
from tests.training.worker import Job, do, result, run_pair

pytestmark = pytest.mark.gpu

SMALL = {"iterations": 1, "prompts_per_iteration": 4, "group_size": 2, "updates_per_iteration": 2}
LORA = {"lora": {"rank": 2, "alpha": 4.0, "targets": ("to_q", "to_v")}}
JOBS = {
    "replicated": Job(CHUNK_WS, SMALL, "replicated"),
    "sharded": Job(CHUNK_WS, {**SMALL, "shard_weights": True}, "sharded"),
    "lora": Job(CHUNK_WS, {**SMALL, **LORA}, "lora"),
}


def test_two_processes_find_the_gradient_of_one(device: str, prompts: PromptSet, tmp_path: Path) -> None:
    jobs = {name: replace(job, device=device) for name, job in JOBS.items()}
    (tmp_path / "pair").mkdir()
    run_pair(jobs, prompts, tmp_path / "pair", device)
    for name, job in jobs.items():
        one, two = do(job, prompts, tmp_path / "alone"), result(tmp_path / "pair", name, 0)
        assert one.error == two.error == ""
        assert one.gradient is not None
        assert two.gradient is not None
        assert float((two.gradient - one.gradient).norm() / one.gradient.norm()) < 1e-3, name
        assert two.metric("reward_mean") == pytest.approx(one.metric("reward_mean"), abs=1e-4)
        assert torch.equal(two.gradient, result(tmp_path / "pair", name, 1).gradient)
