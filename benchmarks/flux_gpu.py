"""Passes of FLUX.1-dev's transformer on a GPU: forward pass of the rollout, forward and backward pass of the update.

They run a randomly initialised network of FLUX.1-dev's configuration (12 billion weights, bfloat16) on latents of
720 x 720 pixels (2,025 image and 512 text tokens), through the same adapter as training: all weights with activation
checkpointing, as float32 weights under autocast; and LoRA, with and without checkpointing. For each batch size there
are median seconds, operations by torch's count (recomputed activations count), and peak memory. The optimiser is not
measured: an iteration has two optimiser steps and hundreds of passes. `benchmarks.gpu_report` runs them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from diffusers import FluxTransformer2DModel
from torch.utils.benchmark import Measurement, Timer
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.random_flux import family_of, random_module
from chunk_grpo.families.base import Conditioning, TuningOptions
from chunk_grpo.families.models.flux import FluxFamily


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


def measure(
    size: Size, work: str, batch_sizes: Sequence[int], min_run_time: float, device: torch.device
) -> Iterator[Cell]:
    """Measure one kind of work at every batch size, with a new network."""
    family: FluxFamily | None
    try:
        family = make_family(size, work, device)
        # Of one image: while torch counts, checkpointed blocks keep their activations.
        tflop = flop_count(one_pass(family, size, work, 1, device)) / 1e12
    except torch.OutOfMemoryError:
        family, tflop = None, 0.0
    for batch_size in batch_sizes:
        cell = Cell(work, batch_size)
        with suppress(torch.OutOfMemoryError):
            if family is not None:
                call = one_pass(family, size, work, batch_size, device)
                on_gpu = device.type == "cuda"
                if on_gpu:
                    torch.cuda.reset_peak_memory_stats(device)
                seconds = timed(call, min_run_time).median
                peak = torch.cuda.max_memory_allocated(device) if on_gpu else None
                cell = Cell(work, batch_size, batch_size * tflop, seconds, peak)
        yield cell
        release(device)
    del family
    release(device)


def make_family(size: Size, work: str, device: torch.device) -> FluxFamily:
    """A random network in its adapter, prepared for the work, without text encoders and VAE."""
    network = random_module(lambda: FluxTransformer2DModel(guidance_embeds=True, **size.network), device)
    family = family_of(network, size.side, device)
    tuning = WORKS[work]
    if tuning is not None:
        family.prepare_training(tuning, 0)
    return family


def one_pass(family: FluxFamily, size: Size, work: str, batch_size: int, device: torch.device) -> Callable[[], object]:
    """A call of the velocity for a random batch, with a backward pass unless the work is the forward pass."""
    stream, config = torch.Generator().manual_seed(0), family.transformer.config
    x = torch.randn(batch_size, *family.latent_shape, generator=stream).to(device)
    text = torch.randn(batch_size, size.text_tokens, config.joint_attention_dim, generator=stream)
    pooled = torch.randn(batch_size, config.pooled_projection_dim, generator=stream)
    conditioning = Conditioning({"prompt_embeds": text, "pooled": pooled}).to(device)
    t = torch.full((batch_size,), 0.5, device=device)
    if work == FORWARD:
        return torch.no_grad()(lambda: family.velocity(x, t, conditioning))
    # Gradients are not reset: an update accumulates many passes.
    return lambda: torch.autograd.backward(family.velocity(x, t, conditioning).float().square().mean())


def flop_count(call: Callable[[], object]) -> int:
    """Floating-point operations of a call, by torch's count; a multiply-add counts as two."""
    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


def timed(call: Callable[[], object], min_run_time: float) -> Measurement:
    """Seconds of repeated calls, after a warm-up, with torch's number of threads."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=min_run_time)


def release(device: torch.device) -> None:
    """Free memory of objects that are gone."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
