"""Draw the evaluation images of one policy: the base model, or a variant in modes tuned and hybrid for every seed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.artifacts import input_dir, join, write_bytes, write_rows
from chunk_grpo.config import Params
from chunk_grpo.families.base import Family
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.generation import GeneratedImage, GenerationSettings, generate
from chunk_grpo.image_files import encode_png, image_grid
from chunk_grpo.progress import Meter
from stages._inputs import load_model, read_encoded_prompts
from stages._stage import argument, run_stage

BASE_SEED = -1
GRID_IMAGES, GRID_COLUMNS = 64, 8


@dataclass(frozen=True)
class Arguments:
    policy: str = field(metadata=argument("`base`, or the name of a variant"))
    model: str = field(metadata=argument("JSON of stage inputs: content of the base model's files"))
    prompts: str = field(metadata=argument("prompts/1, Parquet"))
    index: str = field(metadata=argument("embeddings/1, Parquet"))
    tensors: str = field(metadata=argument("embeddings, safetensors"))
    out: str = field(metadata=argument("folder for images.parquet and grid.png", writes=True))
    trained: str = field(default="", metadata=argument("folder of the trained policies; omitted for `base`"))


@contextmanager
def policy(base: Family, trained: str, seed: int) -> Iterator[Family]:
    """The trained policy of a seed. Inside the block it takes the place of the base model's network."""
    with (
        input_dir(join(trained, f"seed-{seed}", "transformer")) as folder,
        base.replaced_by(Path(folder)) as tuned,
    ):
        yield tuned
        del tuned  # freed before the base model's network returns to the device


def image_row(policy: str, train_seed: int, image: GeneratedImage) -> dict[str, object]:
    """Row of images/1."""
    name = f"{policy}-{image.mode}-{train_seed}-{image.prompt_id}-{image.sample}.png"
    return {
        "policy": policy,
        "mode": image.mode,
        "train_seed": train_seed,
        "prompt_id": image.prompt_id,
        "sample": image.sample,
        "seed": image.seed,
        "image": {"bytes": encode_png(image.picture), "path": name},
    }


def draw(
    base: Family, prompts: PromptSet, params: Params, arguments: Arguments
) -> Iterator[tuple[int, GeneratedImage]]:
    """Draw all images of all training seeds."""
    s = params.generate
    settings = GenerationSettings(
        s.num_steps, s.shift, s.base_steps, s.images_per_prompt, s.batch_size, s.seed
    )
    seeds = params.train.seeds if arguments.trained else (BASE_SEED,)
    modes = 2 if arguments.trained else 1
    with Meter(
        f"drawing {arguments.policy}", len(seeds) * modes * len(prompts) * s.images_per_prompt
    ) as meter:
        for seed in seeds:
            tuned = partial(policy, base, arguments.trained, seed) if arguments.trained else None
            for batch in generate(base, tuned, prompts, settings, meter.advance):
                yield from ((seed, image) for image in batch)


def main(params: Params, arguments: Arguments) -> None:
    """Draw and store all images, and a grid of the first images of the first training seed."""
    prompts = read_encoded_prompts(arguments.prompts, arguments.index, arguments.tensors)
    base = load_model(
        params, arguments.model, ("transformer", "vae"), (params.generate.height, params.generate.width)
    )
    shown: list[NDArray[np.uint8]] = []

    def rows() -> Iterator[dict[str, object]]:
        for train_seed, image in draw(base, prompts, params, arguments):
            if len(shown) < GRID_IMAGES and image.mode != "hybrid":
                shown.append(image.picture)
            yield image_row(arguments.policy, train_seed, image)

    write_rows(rows(), join(arguments.out, "images.parquet"), "images")
    write_bytes(encode_png(image_grid(shown, GRID_COLUMNS)), join(arguments.out, "grid.png"))


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
