"""Peak memory of the update of one 7-step chunk: ours, and autograd with all activations held.

Measured by torch's own records: the profiler logs each tensor storage as it is made and freed, with the running sum.
The size of the process (`ru_maxrss`) would not do: it contains imports and weights, the allocator keeps what was freed,
and a peak before the update hides one in it. Only the extra counts: weights, and the gradient's buffers, which
any method needs, are there before. What MKL and oneDNN take inside one operation is not seen; both ways call the same
operations. Each way runs in a process of its own, so that none finds the other's caches warm.
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
from chunk_grpo.training.chunks import TrainedChunks
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.update import Objective, Policies, Update, UpdateBatch

SIZES = (2, 3, 4, 7)
"""The plan whose last chunk is updated."""

Way = Literal["autograd", "ours"]


@dataclass(frozen=True)
class Peaks:
    """Peak extra bytes of one chunk's update.

    Attributes:
        trajectories: How many at once: in each pass of autograd, and as items in each of ours.
        autograd: With the activations of all steps of the chunk held.
        ours: One (sample, step) item of each trajectory at a time.
    """

    trajectories: int
    autograd: int
    ours: int


def chunk_peaks(configuration: Configuration, trajectories: int) -> Peaks:
    """Both ways, each in a fresh process."""
    whole = replace(configuration, sizes=SIZES)
    found = {}
    ways: tuple[Way, ...] = ("autograd", "ours")
    for way in ways:
        # Not forked: torch's threads do not survive that.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=quiet) as process:
            found[way] = process.submit(update_peak, whole, trajectories, way).result()
    return Peaks(trajectories, found["autograd"], found["ours"])


def update_peak(configuration: Configuration, trajectories: int, way: Way) -> int:
    """Peak extra bytes of the update of the plan's last chunk, on policy, of made-up trajectories."""
    family = configuration.family()
    family.prepare_training(TuningOptions(None, 1.0, (), False, None), 0)
    for parameter in family.trainable_parameters():
        parameter.grad = torch.zeros_like(parameter)
    update, processes = _update(family, configuration, trajectories), Processes()
    gradient = held_gradient if way == "autograd" else Update.accumulate_gradient

    def work() -> None:
        gradient(update, processes, on_policy=True, check=lambda: None)

    work()  # what is made at the first call and kept does not count
    return peak_bytes(work)


def peak_bytes(work: Callable[[], None]) -> int:
    """Most bytes of tensors that `work` had at one time, beyond what was there before it."""
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            work()
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    return max((int(e["args"]["Total Allocated"]) for e in events if e.get("name") == "[memory]"), default=0)


def _update(family: FluxFamily, configuration: Configuration, trajectories: int) -> Update:
    """The update of the last chunk; the states are noise, which costs what a rollout's would."""
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
