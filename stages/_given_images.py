"""Images that were made elsewhere, for a comparison."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.config.models import GenerateParams
from chunk_grpo.config.policies import ComparedImages
from chunk_grpo.errors import DataError
from chunk_grpo.generation import GeneratedImage, image_seed
from chunk_grpo.image_files import read_picture
from chunk_grpo.prompts import FieldNames
from chunk_grpo.prompts.image_folders import INDEX, ImageFile, read_image_folder


def given_images(
    images: ComparedImages, prompts: Sequence[tuple[str, str]], settings: GenerateParams
) -> Iterator[GeneratedImage]:
    """Read images that were made elsewhere, in the order of the prompts (id and text).

    They get the seeds of the images with which they are compared. Too few, or one of another size, are a DataError.
    """
    files, count = _files_by_prompt(Path(images.path)), settings.images_per_prompt
    for prompt_id, text in prompts:
        if len(files[text]) < count:
            raise DataError(
                f"{Path(images.path, INDEX)}: must name generate.images_per_prompt = {count} images for each prompt "
                f"with evaluation images, got {len(files[text])} for {text!r}"
            )
        for sample, file in enumerate(files[text][:count]):
            seed = image_seed(settings.seed, prompt_id, sample)
            yield GeneratedImage("tuned", prompt_id, sample, seed, _picture(file, settings))


def _files_by_prompt(folder: Path) -> defaultdict[str, list[ImageFile]]:
    found = defaultdict[str, list[ImageFile]](list)
    for file in read_image_folder(folder, None, FieldNames()):
        found[file.prompt].append(file)
    return found


def _picture(file: ImageFile, settings: GenerateParams) -> NDArray[np.uint8]:
    if file.shape != (settings.width, settings.height):
        raise DataError(
            f"{file.path}: must have generate.width x generate.height = {settings.width} x {settings.height} pixels, "
            f"got {file.shape[0]} x {file.shape[1]}; resize the images, or change both keys"
        )
    return read_picture(file.path)
