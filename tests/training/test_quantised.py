"""Training beside a quantised base: one network for rollout, update and reference, and the same bytes when resumed."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from chunk_grpo.config.models import BasePrecision
from chunk_grpo.families.prompts import PromptSet
from tests.families.small_parts import TINY
from tests.training.conftest import CHUNK_WS
from tests.training.worker import Job, do, result, run_pair

PRECISIONS: tuple[BasePrecision, ...] = get_args(BasePrecision)
LORA: dict[str, Any] = {
    "lora": {"rank": 2, "alpha": 4.0, "targets": ("to_q", "to_v")},
    "gradient_checkpointing": True,
    "iterations": 2,
    "prompts_per_iteration": 1,
    "group_size": 2,
    "updates_per_iteration": 1,
    "learning_rate": 3e-3,
    "heldout": {"every": 10, "num_prompts": 1, "images_per_prompt": 1},
}
ONE_IMAGE = {"rollout_batch_size": 1, "micro_batch_size": 1}
"""Batches of one image in every pass: other numbers of images round differently by themselves."""


def job(precision: BasePrecision, folder: str = "job", **train: Any) -> Job:
    return Job(CHUNK_WS, LORA | train, folder, dtype="bfloat16", base_precision=precision, checkpoint=str(TINY))


@pytest.mark.parametrize("precision", ["int8", "nf4", pytest.param("float8", marks=pytest.mark.slow)])
def test_rollout_update_and_reference_share_the_network(precision, prompts, tmp_path):
    """Log-probabilities of rollout and update are the same bits, before and after the adapter has moved; before, the
    divergence from the reference is 0 to the bit too."""
    seen = do(job(precision, kl_coef=0.05, **ONE_IMAGE), prompts, tmp_path)
    assert seen.error == ""
    assert seen.metric("fidelity_p99") == [0.0, 0.0]
    first, later = seen.metric("kl")
    assert first == 0.0 < later


@pytest.mark.parametrize(
    "precision", ["int8", *(pytest.param(p, marks=pytest.mark.slow) for p in PRECISIONS if p != "int8")]
)
def test_a_stopped_training_is_resumed_to_the_same_bytes(precision, prompts, tmp_path):
    whole = do(job(precision, "whole", ema_decay=0.5), prompts, tmp_path)
    again = job(precision, "again", ema_decay=0.5)
    stopped = do(replace(again, stop_at=12), prompts, tmp_path, rank=1)
    assert stopped.error.startswith("TransientError: stopped")
    resumed = do(again, prompts, tmp_path)
    assert whole.error == resumed.error == ""
    assert resumed.has_weights_of(whole)
    files = [sorted((tmp_path / name / "policies").rglob("*.safetensors")) for name in ("whole", "again")]
    assert files[0]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


@pytest.mark.slow
def test_two_processes_find_the_gradient_of_one(prompts: PromptSet, tmp_path: Path) -> None:
    jobs = {
        name: replace(job(name, name, prompts_per_iteration=2, group_size=2), sgd=True, dtype="float32")
        for name in PRECISIONS
    }
    run_pair(jobs, prompts, tmp_path)
    for name, each in jobs.items():
        one = do(replace(each, folder=f"{name}-alone"), prompts, tmp_path)
        for rank in range(2):
            seen = result(tmp_path, name, rank)
            assert one.error == seen.error == ""
            assert float((seen.gradient - one.gradient).norm() / one.gradient.norm()) < 1e-5
