"""Time of FLUX.1-dev's transformer on a GPU: forward pass of the rollout, forward and backward pass of the update.

It runs a randomly initialised network of FLUX.1-dev's configuration (12 billion weights, bfloat16) on latents of
720 x 720 pixels (2,025 image and 512 text tokens), through the same adapter as training: all weights with activation
checkpointing, as float32 weights under autocast; and LoRA, with and without checkpointing. For each batch size it
prints median seconds, TFLOP/s by counted operations (benchmarks/flops.py), and peak memory; a batch that does not fit
is shown as "out of memory". The optimiser is not measured: an iteration has two optimiser steps and hundreds of passes.

`--small` runs a small network on any device, to check the script.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from rich.console import Console

from benchmarks.flops import Shape, Work, forward_flops, work_flops
from benchmarks.machine import machine
from benchmarks.sheets import Sheet
from chunk_grpo.families.base import Conditioning, LoadOptions, TuningOptions
from chunk_grpo.families.flux import FluxFamily
from chunk_grpo.progress import Meter

FLUX_DEV = Shape(19, 38, 24, 128, 64, 4096, 768, image_tokens=45 * 45, text_tokens=512)
SMALL = Shape(1, 2, 4, 32, 64, 64, 64, image_tokens=3 * 3, text_tokens=8)
AXES = {128: (16, 56, 56), 32: (8, 12, 12)}
"""`axes_dims_rope` by width of a head; 128 is FLUX.1-dev's."""

PIXELS_OF_A_TOKEN = 16
LORA_TARGETS = ("to_q", "to_k", "to_v", "to_out.0")
WORKS: tuple[Work, ...] = ("forward", "full, checkpointing", "LoRA, checkpointing", "LoRA")
NO_DEVICE = 2
"""Exit status if there is no GPU and `--small` was not given."""


@dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        work: Kind of passes.
        batch_size: Images per pass.
        seconds: Median seconds per pass of the batch; None if it did not fit into memory.
        peak_bytes: Peak device memory of tensors, including weights and gradients; None on a CPU.
        tflop: Counted operations of the batch, in TFLOP.
    """

    work: Work
    batch_size: int
    seconds: float | None
    peak_bytes: int | None
    tflop: float


def main(options: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit status."""
    arguments = _parser().parse_args(options)
    console = Console()
    if not torch.cuda.is_available():
        console.print("There is no CUDA device here.", highlight=False)
        if not arguments.small:
            console.print("A network of FLUX.1-dev's size is not run on a CPU; --small runs a small one.")
            return NO_DEVICE
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape, dtype = (SMALL if arguments.small else FLUX_DEV), getattr(torch, arguments.dtype)
    cells = []
    with Meter("passes", len(WORKS) * len(arguments.batch_sizes)) as meter:
        for work in WORKS:
            for cell in measure(shape, work, arguments.batch_sizes, arguments.repeats, dtype, device):
                cells.append(cell)
                meter.advance(note=f"{work}, {cell.batch_size}")
    about = machine() | {"device": _device_name(device), "dtype": arguments.dtype}
    found = {"machine": about, "shape": asdict(shape), "cells": [asdict(cell) for cell in cells]}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sheet = table(shape, cells, about)
    if arguments.markdown:
        console.print(sheet.as_markdown(), markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(sheet.for_terminal())
    return 0


def measure(
    shape: Shape,
    work: Work,
    batch_sizes: Sequence[int],
    repeats: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[Cell]:
    """Measure one kind of work at every batch size, with a new network."""
    family: FluxFamily | None = None
    with out_of_memory_is_none():
        family = make_family(shape, work, dtype, device)
    for size in batch_sizes:
        tflop = size * work_flops(shape, work) / 1e12
        seconds = peak = None
        if family is not None:
            with out_of_memory_is_none():
                seconds, peak = median_seconds(one_pass(family, shape, work, size, device), repeats, device)
        yield Cell(work, size, seconds, peak, tflop)
        _release(device)
    del family
    _release(device)


def make_family(shape: Shape, work: Work, dtype: torch.dtype, device: torch.device) -> FluxFamily:
    """A random network in its adapter, prepared for the work, without text encoders and VAE."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # avoids a temporary float32 copy
    try:
        with device:
            network = FluxTransformer2DModel(
                in_channels=shape.channels,
                num_layers=shape.double_blocks,
                num_single_layers=shape.single_blocks,
                attention_head_dim=shape.head_width,
                num_attention_heads=shape.heads,
                joint_attention_dim=shape.text_width,
                pooled_projection_dim=shape.pooled_width,
                guidance_embeds=True,
                axes_dims_rope=AXES[shape.head_width],
            )
    finally:
        torch.set_default_dtype(before)
    side = PIXELS_OF_A_TOKEN * round(shape.image_tokens**0.5)
    parts = dict.fromkeys(("vae", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"))
    pipeline = FluxPipeline(FlowMatchEulerDiscreteScheduler(), transformer=network, **parts)
    options = LoadOptions("random weights", dtype=dtype, height=side, width=side, device=device)
    network.requires_grad_(False).eval()
    family = FluxFamily(pipeline, options)
    if work != "forward":
        family.prepare_training(_tuning(work), 0)
    return family


def one_pass(
    family: FluxFamily, shape: Shape, work: Work, size: int, device: torch.device
) -> Callable[[], None]:
    """A call of the velocity for `size` images, with a backward pass unless the work is "forward"."""
    stream = torch.Generator().manual_seed(size)
    x = torch.randn(size, shape.image_tokens, shape.channels, generator=stream).to(device)
    t = torch.full((size,), 0.5, device=device)
    text = torch.randn(size, shape.text_tokens, shape.text_width, generator=stream)
    conditioning = Conditioning(text, torch.randn(size, shape.pooled_width, generator=stream)).to(device)

    def forward() -> None:
        with torch.no_grad():
            family.velocity(x, t, conditioning)

    def update() -> None:
        # Gradients are not reset: an update accumulates many passes.
        torch.autograd.backward(family.velocity(x, t, conditioning).float().square().mean())

    return forward if work == "forward" else update


def median_seconds(call: Callable[[], None], repeats: int, device: torch.device) -> tuple[float, int | None]:
    """Median seconds of a call, after one warm-up call, and peak device memory in bytes."""
    seconds = []
    for number in range(repeats + 1):
        if number == 1 and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return statistics.median(seconds[1:]), peak


@contextmanager
def out_of_memory_is_none() -> Iterator[None]:
    """End the block silently if device memory runs out."""
    with suppress(torch.OutOfMemoryError):
        yield


def table(shape: Shape, cells: Sequence[Cell], about: dict[str, str | int]) -> Sheet:
    """The measurements as a table."""
    forward = forward_flops(shape).forward / 1e12
    title = (
        f"{about['device']}, {about['dtype']}, torch {about['torch']}: width {shape.width}, "
        f"{shape.double_blocks} + {shape.single_blocks} blocks, {shape.image_tokens} + {shape.text_tokens} tokens, "
        f"{forward:.3g} TFLOP a forward pass of an image"
    )
    columns = ("work", "images", "TFLOP", "s a pass", "s an image", "TFLOP/s", "peak GiB")
    return Sheet(title, columns, [_line(cell) for cell in cells])


def _line(cell: Cell) -> list[str]:
    start = [cell.work, f"{cell.batch_size}", f"{cell.tflop:.4g}"]
    if cell.seconds is None:
        return [*start, "out of memory", "-", "-", "-"]
    peak = "-" if cell.peak_bytes is None else f"{cell.peak_bytes / 2**30:.1f}"
    each, rate = cell.seconds / cell.batch_size, cell.tflop / cell.seconds
    return [*start, f"{cell.seconds:.4g}", f"{each:.4g}", f"{rate:.3g}", peak]


def _tuning(work: Work) -> TuningOptions:
    rank = None if work == "full, checkpointing" else 32
    return TuningOptions(rank, 64.0, LORA_TARGETS, gradient_checkpointing=work != "LoRA", autocast=None)


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--small", action="store_true", help="run a small network, on the CPU if there is no GPU"
    )
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 4, 8, 12])
    parser.add_argument("--repeats", type=int, default=5, help="passes per median")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--json", type=Path, help="JSON file to write")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main())
