"""Memory and traffic by torch's trackers: numbers worked by hand on a small network, bounds on FLUX.1-dev's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.studies.footprint import LORA_TARGETS, Footprint
from chunk_grpo.families.tracing import Traced, decoding
from chunk_grpo.planning.models import read_checkpoint
from tests.planning.planned import preset

ROOT = Path(__file__).parents[2]
GIB = 2**30
HPSV3, OTHERS = 14.4 * GIB, (1.7 + 0.2) * GIB
"""Weights of HPSv3 in bfloat16; of ImageReward and the VAE."""


def footprint(*options: str) -> Footprint:
    """Figures of the program. A process group of its own must not stay in the test's process."""
    command = [sys.executable, "-m", "benchmarks.studies.footprint", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return Footprint(**json.loads(done.stdout.splitlines()[-1])["bytes"])


@pytest.fixture(scope="module")
def small() -> Footprint:
    """One double and one single block, on 8 GPUs."""
    return footprint("--blocks", "1", "--micro-batch", "2", "--rollout-batch", "2")


@pytest.mark.slow
def test_each_process_holds_an_eighth_and_the_rest_travels(small: Footprint) -> None:
    """Float32 weights with two moments of AdamW, whose step takes gradients and a temporary copy besides.

    Weights travel in bfloat16; checkpointing gathers them a second time, for the backward pass.
    """
    shard = 4 * small.weights / 8
    assert small.held == pytest.approx(shard, rel=0.15)  # with the inputs of the passes, 36 MB
    assert small.optimizer == pytest.approx(2 * shard, rel=1e-3)
    assert small.step - small.held == pytest.approx(4 * shard, rel=1e-3)
    assert small.gathered_rollout == pytest.approx(2 * small.weights, rel=1e-3)
    assert small.gathered_update == pytest.approx(2 * 2 * small.weights, rel=1e-3)
    assert small.reduced_update == pytest.approx(4 * small.weights, rel=1e-3)


@pytest.mark.slow
def test_a_step_as_one_kernel_takes_no_temporary_copy() -> None:
    fused = footprint("--blocks", "1", "--micro-batch", "2", "--optimizer", "adamw-fused")
    assert fused.step - fused.held == pytest.approx(3 * 4 * fused.weights / 8, rel=1e-3)


@pytest.mark.slow
def test_decoding_is_as_planned(small: Footprint) -> None:
    """Two images."""
    checkpoint = read_checkpoint("flux", "black-forest-labs/FLUX.1-dev")
    planned = decoding(Traced(checkpoint, "bfloat16", 720, 720, 512, images=2)).bytes
    assert small.decode == pytest.approx(planned, rel=0.05)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_full_tuning_of_flux_dev_on_8_gpus() -> None:
    train = preset("flux-dev").train
    found = footprint(
        "--micro-batch", str(train.micro_batch_size), "--rollout-batch", str(train.rollout_batch_size)
    )
    assert found.weights == 11_901_408_320
    peak = max(found.rollout + found.decode, found.update, found.step)
    assert peak + OTHERS <= 34 * GIB
    assert peak + OTHERS + HPSV3 <= 50 * GIB
    images = train.prompts_per_iteration * train.group_size // 8
    forward, both = passes(images, train.rollout_batch_size, train.micro_batch_size)
    received = 7 / 8 * (forward * found.gathered_rollout + both * found.gathered_update)
    assert received <= 4e12


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_lora_of_flux_dev_on_one_gpu() -> None:
    """On a card of 48 GB with the scorer at a server, of 80 GB with HPSv3 on it; 2.5 GiB are CUDA's context."""
    train = preset("flux-dev-lora").train
    assert train.lora is not None and train.lora.targets == LORA_TARGETS
    rank, batch = str(train.lora.rank), str(train.rollout_batch_size)
    options = ("--gpus", "1", "--lora-rank", rank, "--rollout-batch", batch)
    found = footprint(*options, "--micro-batch", str(train.micro_batch_size))
    peak = max(found.rollout + found.decode, found.update, found.step) + OTHERS + 2.5 * GIB
    assert peak <= 48e9
    assert peak + HPSV3 <= 80e9


def passes(images: int, rollout_batch: int, micro_batch: int) -> tuple[int, int]:
    """Forward passes, and forward and backward passes, of an iteration of chunks [2, 3, 4, 7].

    Each image trains two of the four chunks, 8 steps on average. The second update's old log-probabilities are
    recomputed, and so are the ratios of chunks that are larger than a micro-batch: [7], here counted as all steps.
    """
    rollout = -(-images // rollout_batch) * 17
    items = images * 8
    both = -(-items // micro_batch)
    return rollout + both // 2 + (both // 2 if micro_batch < 7 else 0), both
