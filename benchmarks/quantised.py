"""What quantised base weights change on the toys, as a Markdown table: bytes, velocity, images.

The whole base goes from noise to image in 16 ODE steps; velocities are compared at its states. Both draw from the same
noise.

    python -m benchmarks.quantised
"""

import sys
from pathlib import Path
from typing import get_args

import torch
from rich.console import Console
from torch import Tensor

from chunk_grpo.config.models import BasePrecision
from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.rollout import rollout_ode
from chunk_grpo.families.base import Conditioning, LoadOptions, velocity_function
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.quantised import parts
from chunk_grpo.families.registry import family_class
from chunk_grpo.shapes.prompts import all_prompts

ASSETS = Path(__file__).resolve().parents[1] / "assets"
STEPS, PROMPTS = 16, 32


def toy(name: str, precision: BasePrecision | None) -> DiffusersFamily:
    """A toy checkpoint in float32."""
    options = LoadOptions(
        str(ASSETS / f"tiny-{name}"), height=32, width=32, max_sequence_length=8, base_precision=precision
    )
    return family_class(name).load(options)


def drawn(family: DiffusersFamily, text: Conditioning) -> Tensor:
    """States [B, S + 1, L, D] from the same noise."""
    noise = torch.randn(len(text), *family.latent_shape, generator=torch.Generator().manual_seed(0))
    velocity = velocity_function(family, text)
    return rollout_ode(lambda _: velocity, noise, time_grid(STEPS, 3.0))


@torch.no_grad()
def row(name: str, precision: BasePrecision) -> list[str]:
    """Cells of a toy: bytes a weight, relative error of the velocity (mean, largest of the steps), of the images."""
    base, other = toy(name, None), toy(name, precision)
    specs = all_prompts()
    text = base.encode([spec.prompt for spec in specs[:: len(specs) // PROMPTS][:PROMPTS]])
    states, times = drawn(base, text), time_grid(STEPS, 3.0)
    errors = []
    for step in range(STEPS):
        t = times[step].float().expand(len(text))
        ours, whole = (each.velocity(states[:, step], t, text) for each in (other, base))
        errors.append(float((ours - whole).norm() / whole.norm()))
    weights = list(other.transformer.parameters())
    held = sum(part.nbytes for weight in weights for part in parts(weight))
    apart = (other.decode(drawn(other, text)[:, -1]) - base.decode(states[:, -1])).abs()
    return [
        f"`{precision}`",
        f"tiny-{name}",
        f"{held / sum(weight.numel() for weight in weights):.2f}",
        f"{sum(errors) / STEPS:.1%}",
        f"{max(errors):.1%}",
        f"{float(apart.mean()):.4f}",
        f"{float((apart.amax(dim=(1, 2, 3)) > 0.25).float().mean()):.0%}",
    ]


def main(names: list[str]) -> None:
    """Print a row for each precision and toy."""
    console = Console(highlight=False, width=200)
    console.print(
        "| `base_precision` | toy | bytes a weight | velocity, mean | velocity, largest | images, mean | images that "
        "differ by above 0.25 somewhere |\n|---|---|---|---|---|---|---|"
    )
    for precision in get_args(BasePrecision):
        for name in names:
            console.print(f"| {' | '.join(row(name, precision))} |")


if __name__ == "__main__":
    main(sys.argv[1:] or ["flux", "sd3"])
