"""`make bench`: time of one call of the policy on this machine, for the checkpoint of params.yaml.

It times the three calls of a training iteration: the velocity without gradient (rollout), the velocity with its
backward pass (update), and the decoding of images (reward). Times are medians without the first call.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from chunk_grpo.config import Params, load_params
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.flux import FluxFamily

PROMPT = "a red circle"


class Timing(NamedTuple):
    """Time of one call.

    Attributes:
        call: Name of the call.
        batch_size: Images per call.
        seconds: Median seconds per call.
    """

    call: str
    batch_size: int
    seconds: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--params", default="params.yaml")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--repeats", type=int, default=5, help="calls per median")
    arguments = parser.parse_args()
    params = load_params(arguments.params)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    family = load(params, device)
    timings = [
        timing
        for size in arguments.batch_sizes
        for timing in measure(family, size, arguments.repeats, device)
    ]
    show(
        timings,
        f"{params.model.checkpoint}, {params.model.dtype}, {device}, {torch.get_num_threads()} threads",
    )


def load(params: Params, device: str) -> FluxFamily:
    """Load the checkpoint at its training size, with a trainable velocity network."""
    model = params.model
    options = LoadOptions(
        checkpoint=model.checkpoint,
        revision=model.revision,
        dtype=getattr(torch, model.dtype),
        height=model.height,
        width=model.width,
        guidance_scale=model.guidance_scale,
        max_sequence_length=model.max_sequence_length,
        device=device,
    )
    family = FluxFamily.load(options)
    for parameter in family.trainable_parameters():
        parameter.requires_grad_(True)
    return family


def measure(family: FluxFamily, batch_size: int, repeats: int, device: str) -> list[Timing]:
    """Time the three calls at one batch size."""
    conditioning = family.encode([PROMPT] * batch_size).to(device)
    latents = torch.randn(batch_size, *family.latent_shape, device=device)
    t = torch.full((batch_size,), 0.5, device=device)

    def forward() -> None:
        with torch.no_grad():
            family.velocity(latents, t, conditioning)

    def forward_backward() -> None:
        for parameter in family.trainable_parameters():
            parameter.grad = None
        torch.autograd.backward(family.velocity(latents, t, conditioning).float().square().mean())

    def decode() -> None:
        with torch.no_grad():
            family.decode(latents)

    calls: dict[str, Callable[[], None]] = {
        "velocity": forward,
        "velocity, backward": forward_backward,
        "decode": decode,
    }
    return [Timing(name, batch_size, median_seconds(call, repeats, device)) for name, call in calls.items()]


def median_seconds(call: Callable[[], None], repeats: int, device: str) -> float:
    """Median seconds of a call, after one warm-up call."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def show(timings: list[Timing], title: str) -> None:
    """Print the table."""
    table = Table("call", title=title)
    for heading in ("images a call", "ms a call", "images a second"):
        table.add_column(heading, justify="right")
    for timing in timings:
        rate = timing.batch_size / timing.seconds
        table.add_row(timing.call, str(timing.batch_size), f"{1000 * timing.seconds:.1f}", f"{rate:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
