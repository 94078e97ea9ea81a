"""Largest differences between each family and its pipeline of diffusers, as a Markdown table.

The checkpoints are small and random, in the real layout (tests/families/checkpoint_NAME.py): two image sizes, one and
four prompts of unequal length, with and without classifier-free guidance, with and without pictures to edit, weights in
several files or in bfloat16; ten steps in float32. tests/families/test_every_family.py asserts a part of it.

    python -m benchmarks.families [NAME ...]
"""

import sys
import tempfile
from itertools import product
from pathlib import Path

from rich.console import Console

from chunk_grpo.config.families import family_names
from tests.families.parity import differences, module_of, save_checkpoints


def largest(name: str) -> tuple[float, float]:
    """Largest differences of a family in latents and pictures."""
    case = module_of(name).CASE
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = save_checkpoints(name, Path(folder)).values()
        settings = product(checkpoints, case.sizes, (1, 4), case.scales, (1,), (None, *case.sources))
        latents, pictures = zip(*(differences(name, *setting) for setting in settings), strict=True)
    return max(latents), max(pictures)


def main() -> None:
    """Print a row for each family, or for those that the command line names."""
    console = Console(highlight=False)
    console.print("| family | latents | pictures |\n|---|---|---|")
    for name in sys.argv[1:] or family_names():
        latents, pictures = largest(name)
        console.print(f"| {name} | {latents:.1e} | {pictures:.1e} |")


if __name__ == "__main__":
    main()
