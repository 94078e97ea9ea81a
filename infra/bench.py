"""`make bench`: time of one call of the policy on this machine, for the checkpoint of params.yaml.

It times the three calls of a training iteration: the velocity without gradient (rollout), the velocity with its
backward pass (update), and the decoding of images (reward). Times are medians without the first call.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from torch.utils.benchmark import Compare, Measurement, Timer

from chunk_grpo.config import Params, load_params
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.models.flux import FluxFamily

PROMPT = "a red circle"


def main(options: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--params", default="params.yaml")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--min-run-time", type=float, default=1.0, help="least seconds of each measurement")
    arguments = parser.parse_args(options)
    params = load_params(arguments.params)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    family = load(params, device)
    found = [
        timed
        for size in arguments.batch_sizes
        for timed in measure(family, size, arguments.min_run_time, device)
    ]
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{params.model.checkpoint}, {params.model.dtype}, {device}", markup=False)
    console.print(str(Compare(found)), markup=False)


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
        attention_backend=model.attention_backend,
    )
    family = FluxFamily.load(options)
    for parameter in family.trainable_parameters():
        parameter.requires_grad_(True)
    return family


def measure(family: FluxFamily, batch_size: int, min_run_time: float, device: str) -> list[Measurement]:
    """Time the three calls at one batch size."""
    conditioning = family.encode([PROMPT] * batch_size).to(device)
    latents = torch.randn(batch_size, *family.latent_shape, device=device)
    t = torch.full((batch_size,), 0.5, device=device)

    def velocity() -> torch.Tensor:
        return family.velocity(latents, t, conditioning)

    calls: dict[str, Callable[[], object]] = {
        "velocity": torch.no_grad()(velocity),
        "velocity, backward": lambda: torch.autograd.backward(velocity().float().square().mean()),
        "decode": torch.no_grad()(lambda: family.decode(latents)),
    }
    return [
        Timer(
            "call()",
            globals={"call": call},
            label="a call of the policy, by images a call",
            sub_label=name,
            description=str(batch_size),
            num_threads=torch.get_num_threads(),
        ).blocked_autorange(min_run_time=min_run_time)
        for name, call in calls.items()
    ]


if __name__ == "__main__":
    main()
