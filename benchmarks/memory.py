"""Peak memory of the update of one 7-step chunk: ours, and autograd with the graph of all its steps.

Memory is read from torch's profiler, which logs the allocation and release of each tensor storage with the running sum.
The size of the process (`ru_maxrss`) is unsuitable: it includes imports and weights, the allocator keeps freed memory,
and an earlier peak hides the update's. Only additional memory counts: weights and gradient buffers, which any method
needs, are allocated before. Memory of MKL and oneDNN inside one operation is not visible; both ways call the same
operations.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.reference import Trajectories, chunk_surrogate
from benchmarks.workloads import TEXT_TOKENS, Workload, random_inputs
from chunk_grpo.core.assignment import ChunkAssignment, TrainedChunks
from chunk_grpo.families.base import TuningOptions
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.update import Policies, Update, UpdateBatch

SIZES = (2, 3, 4, 7)
"""Chunk sizes of the plan; its last chunk is updated."""

Way = Literal["autograd", "ours"]


def chunk_peaks(workload: Workload, trajectories: int) -> dict[str, int]:
    """Peak additional bytes of both ways, for `trajectories` in one pass of autograd, and as many items of ours."""
    whole = replace(workload, sizes=SIZES)
    ways: tuple[Way, ...] = ("autograd", "ours")
    return {"trajectories": trajectories} | {way: update_peak(whole, trajectories, way) for way in ways}


def update_peak(workload: Workload, trajectories: int, way: Way) -> int:
    """Peak additional bytes of an on-policy update of the plan's last chunk.

    Its states are noise, which costs the same as states of a rollout.
    """
    family, method = workload.family(), workload.method()
    family.prepare_training(TuningOptions(None, 1.0, (), False, None), 0)
    for parameter in family.trainable_parameters():
        parameter.grad = torch.zeros_like(parameter)
    N = method.grid.num_sde_steps
    states = torch.randn(
        trajectories, N + 2, *family.latent_shape, generator=torch.Generator().manual_seed(0)
    )
    _, _, conditioning = random_inputs(family, trajectories, TEXT_TOKENS)
    old_log_probs, advantages = torch.zeros(trajectories, N), torch.ones(trajectories)
    selected = torch.zeros(trajectories, method.plan.num_chunks, dtype=torch.bool)
    selected[:, -1] = True
    chunks = TrainedChunks(ChunkAssignment.shared(method.plan, trajectories), selected, None)
    first_step = torch.zeros(trajectories, dtype=torch.int64)
    batch = UpdateBatch(states, first_step, conditioning, advantages, old_log_probs, None, chunks)
    update = Update(Policies(family.velocity), method, batch, method.bounds, trajectories)
    rows, steps = (
        Trajectories(states, old_log_probs, conditioning, advantages),
        range(method.plan.first_steps[-1], N),
    )

    def ours() -> None:
        update.accumulate_gradient(Processes(), on_policy=True, check=lambda: None)

    def autograd() -> None:
        (
            -chunk_surrogate(family.velocity, method.grid, method.bounds.clip_range, rows, steps).mean()
        ).backward()

    gradient = ours if way == "ours" else autograd
    gradient()  # warm-up: memory allocated once and kept does not count
    return peak_bytes(gradient)


def peak_bytes(work: Callable[[], None]) -> int:
    """Peak bytes of tensors during `work`, beyond those allocated before."""
    gc.collect()  # tensors of earlier work that are freed meanwhile would count
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            work()
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    changes = [e["args"] for e in sorted(events, key=lambda e: e.get("ts", 0)) if e.get("name") == "[memory]"]
    if not changes:
        return 0
    first = changes[0]
    # Torch does not reset its sum between profiles: tensors of an earlier one that are still alive are in it.
    before = int(first["Total Allocated"]) - int(first["Bytes"])
    return max(int(args["Total Allocated"]) for args in changes) - before
