"""Evaluation images: drawn, or read where they were made elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.config.models import GenerateParams
from chunk_grpo.config.policies import ComparedImages
from chunk_grpo.errors import DataError
from chunk_grpo.families.base import Family
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.generation import GeneratedImage, GenerationSettings, batch_spans, generate, image_seed
from chunk_grpo.image_files import read_picture
from chunk_grpo.parallel import Workers
from chunk_grpo.progress import Meter
from chunk_grpo.prompts.image_folders import INDEX, ImageFile, read_image_folder

Tuned = Callable[[Family], AbstractContextManager[Family]]
"""Context of a policy that takes the place of the base model's network."""

Made = TypeVar("Made")


def drawn(
    base: Family,
    tuned: Tuned | None,
    prompts: PromptSet,
    settings: GenerationSettings,
    made: Callable[[GeneratedImage], Made],
    workers: Workers,
    label: str = "drawing",
) -> Iterator[Made]:
    """Draw all images; yield what is made of each, in the main process.

    Without `tuned` the base model draws alone. `made` is called in the process that has drawn the image, and its result
    can be pickled. A latent that is not finite is a DataError.
    """
    spans = batch_spans(prompts, settings)
    own_images = sum(map(len, spans[workers.share[0] :: workers.share[1]]))
    steps = settings.num_steps + (0 if tuned is None else settings.base_steps)
    with Meter(label, own_images, parts=steps) as meter:
        context = None if tuned is None else partial(tuned, base)
        batches = generate(base, context, prompts, settings, meter.advance, workers.share)
        for images in workers.in_order(spans, lambda _: [made(image) for image in next(batches)]):
            yield from images


def given_images(images: ComparedImages, prompts: PromptSet, settings: GenerateParams) -> Iterator[GeneratedImage]:
    """Read images that were made elsewhere, in the order of the prompts.

    They get the seeds of the images with which they are compared. Too few, or one of another size, are a DataError.
    """
    files, count = _files_by_prompt(Path(images.path)), settings.images_per_prompt
    with Meter(f"reading {images.path}", len(prompts) * count) as meter:
        for prompt_id, text in zip(prompts.ids, prompts.texts, strict=True):
            if len(files[text]) < count:
                raise DataError(
                    f"{Path(images.path, INDEX)}: must name generate.images_per_prompt = {count} images for each "
                    f"prompt with evaluation images, got {len(files[text])} for {text!r}"
                )
            for sample, file in enumerate(files[text][:count]):
                seed = image_seed(settings.seed, prompt_id, sample)
                yield GeneratedImage("tuned", prompt_id, sample, seed, _picture(file, settings))
                meter.advance()


def _files_by_prompt(folder: Path) -> defaultdict[str, list[ImageFile]]:
    found = defaultdict[str, list[ImageFile]](list)
    for file in read_image_folder(folder):
        found[file.prompt].append(file)
    return found


def _picture(file: ImageFile, settings: GenerateParams) -> NDArray[np.uint8]:
    if file.shape != (settings.width, settings.height):
        raise DataError(
            f"{file.path}: must have generate.width x generate.height = {settings.width} x {settings.height} pixels, "
            f"got {file.shape[0]} x {file.shape[1]}; resize the images, or change both keys"
        )
    return read_picture(file.path)
