"""Time of FLUX.1-dev's transformer on a GPU: forward pass of the rollout, forward and backward pass of the update.

It runs a randomly initialised network of FLUX.1-dev's configuration (12 billion weights, bfloat16) on latents of
720 x 720 pixels (2,025 image and 512 text tokens), through the same adapter as training: all weights with activation
checkpointing, as float32 weights under autocast; and LoRA, with and without checkpointing. For each batch size it
prints median seconds, TFLOP/s by torch's count of operations (recomputed activations count), and peak memory; a batch
that does not fit is shown as "out of memory". The optimiser is not measured: an iteration has two optimiser steps and
hundreds of passes.

`--small` runs a small network on any device, to check the script.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from diffusers import FluxTransformer2DModel
from rich.console import Console

from benchmarks.random_flux import family_of_parts, random_module
from benchmarks.tables import machine, parser_of, print_machine, print_table
from benchmarks.throughput import flop_count, timed
from benchmarks.workloads import random_inputs
from chunk_grpo.artifacts import write_json
from chunk_grpo.families.base import TuningOptions
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.progress import Meter


@dataclass(frozen=True)
class Size:
    """Size of a network and of its inputs."""

    side: int
    """Image side in pixels."""
    text_tokens: int
    """Tokens of the longer text encoder."""
    network: Mapping[str, object] = field(default_factory=dict)
    """Arguments of FluxTransformer2DModel; its defaults are FLUX.1's."""


FLUX_DEV = Size(side=720, text_tokens=512)
SMALL = Size(
    side=48,
    text_tokens=8,
    network={
        "num_layers": 1,
        "num_single_layers": 2,
        "num_attention_heads": 4,
        "attention_head_dim": 32,
        "axes_dims_rope": (8, 12, 12),
        "joint_attention_dim": 64,
        "pooled_projection_dim": 64,
    },
)
LORA_TARGETS = ("to_q", "to_k", "to_v", "to_out.0")
FORWARD = "forward"
WORKS: dict[str, TuningOptions | None] = {
    FORWARD: None,
    "full, checkpointing": TuningOptions(None, 1.0, (), gradient_checkpointing=True, autocast=None),
    "LoRA, checkpointing": TuningOptions(32, 64.0, LORA_TARGETS, gradient_checkpointing=True, autocast=None),
    "LoRA": TuningOptions(32, 64.0, LORA_TARGETS, gradient_checkpointing=False, autocast=None),
}
"""The rollout's forward pass, and an update's forward and backward pass by what is trained."""

COLUMNS = ("work", "images", "TFLOP", "s a pass", "s an image", "TFLOP/s", "peak GiB")
NO_DEVICE = 2
"""Exit status if there is no GPU and `--small` was not given."""


@dataclass(frozen=True)
class Cell:
    """One measurement; without numbers if it did not fit into memory."""

    work: str
    """Kind of passes, a key of `WORKS`."""
    batch_size: int
    """Images per pass."""
    tflop: float | None = None
    """Counted operations of the batch, in TFLOP."""
    seconds: float | None = None
    """Median seconds per pass of the batch."""
    peak_bytes: int | None = None
    """Peak device memory of tensors, including weights and gradients; None on a CPU."""

    def line(self) -> list[str]:
        """Row of the table."""
        start = [self.work, f"{self.batch_size}"]
        if self.tflop is None or self.seconds is None:
            return [*start, "-", "out of memory", "-", "-", "-"]
        peak = "-" if self.peak_bytes is None else f"{self.peak_bytes / 2**30:.1f}"
        numbers = (self.tflop, self.seconds, self.seconds / self.batch_size, self.tflop / self.seconds)
        return [*start, *(f"{number:.4g}" for number in numbers), peak]


def main(options: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit status."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--small", action="store_true", help="run a small network, on the CPU if there is no GPU"
    )
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 4, 8, 12])
    parser.add_argument("--min-run-time", type=float, default=5.0, help="least seconds of each measurement")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--json", type=Path, help="JSON file to write")
    arguments = parser.parse_args(options)
    console = Console()
    if not torch.cuda.is_available():
        console.print("There is no CUDA device here.", highlight=False)
        if not arguments.small:
            console.print("A network of FLUX.1-dev's size is not run on a CPU; --small runs a small one.")
            return NO_DEVICE
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size, dtype = (SMALL if arguments.small else FLUX_DEV), getattr(torch, arguments.dtype)
    cells = []
    with Meter("passes", len(WORKS) * len(arguments.batch_sizes)) as meter:
        for work in WORKS:
            for cell in measure(size, work, arguments.batch_sizes, arguments.min_run_time, dtype, device):
                cells.append(cell)
                meter.advance(note=f"{work}, {cell.batch_size}")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    if arguments.json is not None:
        about = machine() | {"device": name, "dtype": arguments.dtype}
        found = {"machine": about, "size": asdict(size), "cells": [asdict(cell) for cell in cells]}
        write_json(found, str(arguments.json))
    title = f"{name}, {arguments.dtype}, {size.side} x {size.side} pixels, {size.text_tokens} text tokens"
    print_table(title, COLUMNS, [cell.line() for cell in cells])
    print_machine()
    return 0


def measure(
    size: Size,
    work: str,
    batch_sizes: Sequence[int],
    min_run_time: float,
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[Cell]:
    """Measure one kind of work at every batch size, with a new network."""
    family: FluxFamily | None
    try:
        family = make_family(size, work, dtype, device)
        # Of one image: while torch counts, checkpointed blocks keep their activations.
        tflop = flop_count(one_pass(family, size, work, 1, device)) / 1e12
    except torch.OutOfMemoryError:
        family, tflop = None, 0.0
    for batch_size in batch_sizes:
        cell = Cell(work, batch_size)
        with suppress(torch.OutOfMemoryError):
            if family is not None:
                call = one_pass(family, size, work, batch_size, device)
                cell = _measured(work, batch_size, batch_size * tflop, call, min_run_time, device)
        yield cell
        release(device)
    del family
    release(device)


def make_family(size: Size, work: str, dtype: torch.dtype, device: torch.device) -> FluxFamily:
    """A random network in its adapter, prepared for the work, without text encoders and VAE."""
    network = random_module(
        lambda: FluxTransformer2DModel(guidance_embeds=True, **size.network), device, dtype
    )
    family = family_of_parts(size.side, dtype, device, transformer=network)
    tuning = WORKS[work]
    if tuning is not None:
        family.prepare_training(tuning, 0)
    return family


def one_pass(
    family: FluxFamily, size: Size, work: str, batch_size: int, device: torch.device
) -> Callable[[], object]:
    """A call of the velocity for a batch, with a backward pass unless the work is the forward pass."""
    x, t, conditioning = random_inputs(family, batch_size, size.text_tokens, device)
    if work == FORWARD:
        return torch.no_grad()(lambda: family.velocity(x, t, conditioning))
    # Gradients are not reset: an update accumulates many passes.
    return lambda: torch.autograd.backward(family.velocity(x, t, conditioning).float().square().mean())


def _measured(
    work: str,
    batch_size: int,
    tflop: float,
    call: Callable[[], object],
    min_run_time: float,
    device: torch.device,
) -> Cell:
    if device.type != "cuda":
        return Cell(work, batch_size, tflop, timed(call, min_run_time).median)
    torch.cuda.reset_peak_memory_stats(device)
    seconds = timed(call, min_run_time).median
    return Cell(work, batch_size, tflop, seconds, torch.cuda.max_memory_allocated(device))


def release(device: torch.device) -> None:
    """Free memory of objects that are gone."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
