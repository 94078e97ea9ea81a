"""Draw the evaluation images of one policy: the base model, or a trained or saved one in modes tuned and hybrid.

For images that were made elsewhere, read them instead.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.artifacts import input_dir, join, write_bytes, write_rows
from chunk_grpo.config import Params
from chunk_grpo.config.policies import ComparedImages
from chunk_grpo.families.base import Family
from chunk_grpo.generation import GeneratedImage, GenerationSettings
from chunk_grpo.image_files import decode_image, encode_png, image_grid
from chunk_grpo.library.checkpoint import recorded_checkpoint
from chunk_grpo.library.drawing import Tuned, drawn, given_images
from chunk_grpo.library.stored_prompts import encoded_prompts
from chunk_grpo.library.times import times_of
from chunk_grpo.parallel import Workers, exhaust
from chunk_grpo.recorded import recorded_policy
from stages._launch.processes import run_processes
from stages._stage import reads, value, writes

BASE_SEED = -1
GRID_IMAGES, GRID_COLUMNS = 64, 8


@dataclass(frozen=True)
class Arguments:
    policy: str = value("`base`, or the name of a variant or a compared policy")
    model: str = reads("JSON of stage inputs: content of the base model's files")
    prompts: str = reads("prompts/1, Parquet")
    embeddings: str = reads("folder with embeddings/2 and its shards")
    out: str = writes("folder for images.parquet and grid.png")
    trained: str = reads("folder of the trained policy of a variant", "")
    saved: str = reads("JSON of stage inputs: a compared policy and its content", "")
    seed: int = value("training seed of the policy of a variant", BASE_SEED)


@contextmanager
def trained_policy(base: Family, trained: str) -> Iterator[Family]:
    """The policy of a variant. Inside the block it takes the place of the base model's network."""
    with input_dir(join(trained, "transformer")) as folder, base.replaced_by(Path(folder)) as tuned:
        yield tuned
        del tuned  # freed before the base model's network returns to the device


def tuned_of(params: Params, arguments: Arguments) -> Tuned | ComparedImages | None:
    """The policy besides the base model, or images that were made elsewhere; None: the base model draws alone."""
    if arguments.trained:
        return partial(trained_policy, trained=arguments.trained)
    if not arguments.saved:
        return None
    chosen = recorded_policy(params, arguments.policy, arguments.saved)
    if isinstance(chosen, ComparedImages):
        return chosen
    from chunk_grpo.families.weights.policy import local_policy  # here: imports diffusers, which a launcher can spare

    path = local_policy(chosen, f"policies.{arguments.policy}")
    return lambda base: base.replaced_by(path)


Row = dict[str, Any]
"""Row of images/1."""


def row_of(arguments: Arguments, image: GeneratedImage) -> Row:
    name = f"{arguments.policy}-{image.mode}-{arguments.seed}-{image.prompt_id}-{image.sample}.png"
    return {
        "policy": arguments.policy,
        "mode": image.mode,
        "train_seed": arguments.seed,
        "prompt_id": image.prompt_id,
        "sample": image.sample,
        "seed": image.seed,
        "image": {"bytes": encode_png(image.picture), "path": name},
    }


def main(params: Params, arguments: Arguments) -> None:
    """Draw and store all images, and a grid of the first ones."""
    workers, s = Workers(), params.generate
    shown: list[NDArray[np.uint8]] = []

    def noted(rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            if len(shown) < GRID_IMAGES and row["mode"] != "hybrid":
                shown.append(decode_image(row["image"]["bytes"], row["image"]["path"]))
            yield row

    tuned, made = tuned_of(params, arguments), partial(row_of, arguments)
    with encoded_prompts(arguments.prompts, arguments.embeddings, s.cfg_scale) as stored:
        prompts = stored.require(stored.of())
        if isinstance(tuned, ComparedImages):
            rows: Iterator[Row] = map(made, given_images(tuned, prompts, s) if workers.is_main else ())
        else:
            base = recorded_checkpoint(params.model, arguments.model, s).loaded("transformer", "vae")
            times = times_of(s.num_steps, s.shift, lambda: base)
            sizes = GenerationSettings(times, s.base_steps, s.images_per_prompt, s.batch_size, s.seed)
            rows = drawn(base, tuned, prompts, sizes, made, workers, f"drawing {arguments.policy}")
        if workers.is_main:
            write_rows(noted(rows), join(arguments.out, "images.parquet"), "images")
        else:
            exhaust(rows)
    if workers.is_main:
        if arguments.saved:  # again: it may have been edited meanwhile
            recorded_policy(params, arguments.policy, arguments.saved)
        write_bytes(encode_png(image_grid(shown, GRID_COLUMNS)), join(arguments.out, "grid.png"))


if __name__ == "__main__":
    sys.exit(run_processes(main, Arguments))
