"""Peak memory of the update of one 7-step chunk: ours, and autograd with all activations held.

Memory is read from torch's profiler, which logs the allocation and release of each tensor storage with the running sum.
The size of the process (`ru_maxrss`) is unsuitable: it includes imports and weights, the allocator keeps freed memory,
and an earlier peak hides the update's. Only additional memory counts: weights and gradient buffers, which any method
needs, are allocated before. Memory of MKL and oneDNN inside one operation is not visible; both ways call the same
operations. Each way runs in a new process, so that caches are cold.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.configurations import TEXT_TOKENS, Configuration, quiet
from benchmarks.held import held_gradient
from chunk_grpo.core.assignment import ChunkAssignment
from chunk_grpo.families.base import Conditioning, TuningOptions
from chunk_grpo.families.flux import FluxFamily
from chunk_grpo.training.chunk_selection import TrainedChunks
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.update import Objective, Policies, Update, UpdateBatch

SIZES = (2, 3, 4, 7)
"""Chunk sizes of the plan; its last chunk is updated."""

Way = Literal["autograd", "ours"]


@dataclass(frozen=True)
class Peaks:
    """Peak additional bytes of one chunk's update.

    Attributes:
        trajectories: Trajectories per pass of autograd, and items per pass of ours.
        autograd: Bytes with the activations of all steps of the chunk held.
        ours: Bytes with one (sample, step) item of each trajectory at a time.
    """

    trajectories: int
    autograd: int
    ours: int


def chunk_peaks(configuration: Configuration, trajectories: int) -> Peaks:
    """Measure both ways, each in a new process."""
    whole = replace(configuration, sizes=SIZES)
    found = {}
    ways: tuple[Way, ...] = ("autograd", "ours")
    for way in ways:
        # Not forked: torch's threads do not survive a fork.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=quiet) as process:
            found[way] = process.submit(update_peak, whole, trajectories, way).result()
    return Peaks(trajectories, found["autograd"], found["ours"])


def update_peak(configuration: Configuration, trajectories: int, way: Way) -> int:
    """Peak additional bytes of an on-policy update of the plan's last chunk, for random trajectories."""
    family = configuration.family()
    family.prepare_training(TuningOptions(None, 1.0, (), False, None), 0)
    for parameter in family.trainable_parameters():
        parameter.grad = torch.zeros_like(parameter)
    update, processes = _update(family, configuration, trajectories), Processes()
    gradient = held_gradient if way == "autograd" else Update.accumulate_gradient

    def work() -> None:
        gradient(update, processes, on_policy=True, check=lambda: None)

    work()  # warm-up: memory allocated once and kept does not count
    return peak_bytes(work)


def peak_bytes(work: Callable[[], None]) -> int:
    """Peak bytes of tensors during `work`, beyond those allocated before."""
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            work()
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    return max((int(e["args"]["Total Allocated"]) for e in events if e.get("name") == "[memory]"), default=0)


def _update(family: FluxFamily, configuration: Configuration, trajectories: int) -> Update:
    """An update of the last chunk; its states are noise, which costs the same as states of a rollout."""
    method, tokens = configuration.method(), family.latent_shape
    stream, steps = torch.Generator().manual_seed(0), method.grid.num_sde_steps
    assignment = ChunkAssignment.shared(method.plan, trajectories)
    selected = torch.zeros(trajectories, method.plan.num_chunks, dtype=torch.bool)
    selected[:, -1] = True
    text, pooled = (
        family.transformer.config.joint_attention_dim,
        family.transformer.config.pooled_projection_dim,
    )
    batch = UpdateBatch(
        states=torch.randn(trajectories, steps + 2, *tokens, generator=stream),
        first_step=torch.zeros(trajectories, dtype=torch.int64),
        conditioning=Conditioning(
            torch.randn(trajectories, TEXT_TOKENS, text, generator=stream),
            torch.randn(trajectories, pooled, generator=stream),
        ),
        advantages=torch.ones(trajectories),
        old_log_probs=torch.zeros(trajectories, steps),
        old_means=None,
        chunks=TrainedChunks(assignment, selected, None),
    )
    objective = Objective(method.clip_range)
    return Update(Policies(family.velocity), method.grid, batch, objective, trajectories)
