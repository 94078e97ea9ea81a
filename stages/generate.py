"""Draw the evaluation images of one policy: the base model, or a trained or saved one in modes tuned and hybrid.

For images that were made elsewhere, read them instead.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.artifacts import input_dir, join, write_bytes, write_rows
from chunk_grpo.config import Params
from chunk_grpo.config.policies import ComparedImages
from chunk_grpo.families.base import Family
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.families.weights.policy import local_policy
from chunk_grpo.generation import GeneratedImage, GenerationSettings, batch_spans, generate
from chunk_grpo.image_files import encode_png, image_grid
from chunk_grpo.machines import send_files
from chunk_grpo.parallel import Workers, exhaust
from chunk_grpo.progress import Meter
from stages._compared import recorded_policy
from stages._given_images import given_images
from stages._inputs import encoded_prompts, load_model
from stages._launch.processes import run_processes
from stages._stage import argument, inputs_of
from stages._times import times_of

BASE_SEED = -1
GRID_IMAGES, GRID_COLUMNS = 64, 8


@dataclass(frozen=True)
class Arguments:
    policy: str = field(metadata=argument("`base`, or the name of a variant or a compared policy"))
    model: str = field(
        metadata=argument("JSON of stage inputs: content of the base model's files", reads=True)
    )
    prompts: str = field(metadata=argument("prompts/1, Parquet", reads=True))
    embeddings: str = field(metadata=argument("folder with embeddings/2 and its shards", reads=True))
    out: str = field(metadata=argument("folder for images.parquet and grid.png", writes=True))
    trained: str = field(
        default="", metadata=argument("folder of the trained policy of a variant", reads=True)
    )
    saved: str = field(
        default="", metadata=argument("JSON of stage inputs: a compared policy and its content", reads=True)
    )
    seed: int = field(default=BASE_SEED, metadata=argument("training seed of the policy of a variant"))


@contextmanager
def trained_policy(base: Family, trained: str) -> Iterator[Family]:
    """The policy of a variant. Inside the block it takes the place of the base model's network."""
    with (
        input_dir(join(trained, "transformer")) as folder,
        base.replaced_by(Path(folder)) as tuned,
    ):
        yield tuned
        del tuned  # freed before the base model's network returns to the device


Tuned = Callable[[Family], AbstractContextManager[Family]]
"""Context of a policy that takes the place of the base model's network."""


def tuned_of(params: Params, arguments: Arguments) -> Tuned | ComparedImages | None:
    """The policy besides the base model, or images that were made elsewhere; None: the base model draws alone."""
    if arguments.trained:
        return partial(trained_policy, trained=arguments.trained)
    if not arguments.saved:
        return None
    chosen = recorded_policy(params, arguments.policy, arguments.saved)
    if isinstance(chosen, ComparedImages):
        return chosen
    path = local_policy(chosen, f"policies.{arguments.policy}")
    return lambda base: base.replaced_by(path)


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


Drawn = tuple[dict[str, object], NDArray[np.uint8]]
"""Row of images/1, and its picture."""


def draw(
    base: Family,
    tuned: Tuned | None,
    prompts: PromptSet,
    params: Params,
    arguments: Arguments,
    workers: Workers,
) -> Iterator[Drawn]:
    """Draw all images; yield them in the main process."""
    s = params.generate
    settings = GenerationSettings(
        times_of(s, lambda: base), s.base_steps, s.images_per_prompt, s.batch_size, s.seed
    )
    modes = 1 if tuned is None else 2
    spans = batch_spans(prompts, settings)
    own_images = sum(map(len, spans[workers.share[0] :: workers.share[1]]))
    with Meter(f"drawing {arguments.policy}", modes * own_images) as meter:
        context = None if tuned is None else partial(tuned, base)
        own = generate(base, context, prompts, settings, meter.advance, workers.share)

        def rows_of_next(_: range) -> list[Drawn]:
            return [
                (image_row(arguments.policy, arguments.seed, image), image.picture) for image in next(own)
            ]

        for rows in workers.in_order(spans, rows_of_next):
            yield from rows


def read(images: ComparedImages, prompts: PromptSet, params: Params, arguments: Arguments) -> Iterator[Drawn]:
    """Read images that were made elsewhere."""
    found = given_images(images, list(zip(prompts.ids, prompts.texts, strict=True)), params.generate)
    with Meter(f"reading {arguments.policy}", len(prompts) * params.generate.images_per_prompt) as meter:
        for image in found:
            yield image_row(arguments.policy, arguments.seed, image), image.picture
            meter.advance()


def main(params: Params, arguments: Arguments) -> None:
    """Draw and store all images, and a grid of the first ones."""
    workers = Workers()
    send_files(inputs_of(arguments))
    shown: list[NDArray[np.uint8]] = []

    def rows(drawn: Iterator[Drawn]) -> Iterator[dict[str, object]]:
        for row, picture in drawn:
            if len(shown) < GRID_IMAGES and row["mode"] != "hybrid":
                shown.append(picture)
            yield row

    tuned = tuned_of(params, arguments)
    with encoded_prompts(arguments.prompts, arguments.embeddings, params.generate) as stored:
        prompts = stored.require(stored.of())
        if isinstance(tuned, ComparedImages):
            drawn = read(tuned, prompts, params, arguments) if workers.is_main else iter(())
        else:
            base = load_model(params, arguments.model, ("transformer", "vae"), params.generate)
            drawn = draw(base, tuned, prompts, params, arguments, workers)
        if workers.is_main:
            write_rows(rows(drawn), join(arguments.out, "images.parquet"), "images")
        else:
            exhaust(drawn)
    if workers.is_main:
        if arguments.saved:
            recorded_policy(
                params, arguments.policy, arguments.saved
            )  # again: it may have been edited meanwhile
        write_bytes(encode_png(image_grid(shown, GRID_COLUMNS)), join(arguments.out, "grid.png"))


if __name__ == "__main__":
    sys.exit(run_processes(main, Arguments))
