"""Images that were made elsewhere, for a comparison."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from chunk_grpo.config.models import GenerateParams
from chunk_grpo.config.policies import ComparedImages
from chunk_grpo.errors import DataError
from chunk_grpo.generation import GeneratedImage, image_seed

INDEX = "metadata.jsonl"
"""File with the prompt of each image, as in the image folders of Hugging Face's data sets."""


def given_images(
    images: ComparedImages, prompts: Sequence[tuple[str, str]], settings: GenerateParams
) -> Iterator[GeneratedImage]:
    """Read images that were made elsewhere, in the order of the prompts.

    They get the seeds of the images with which they are compared.

    Args:
        images: Folder of the images.
        prompts: Id and text of each prompt.
        settings: Number and size of the images.

    Raises:
        DataError: A prompt has too few images, or an image is damaged or has another size.
    """
    files, count = _files_by_prompt(Path(images.path)), settings.images_per_prompt
    for prompt_id, text in prompts:
        if len(files[text]) < count:
            raise DataError(
                f"{Path(images.path, INDEX)}: must name generate.images_per_prompt = {count} images for each prompt "
                f"with evaluation images, got {len(files[text])} for {text!r}"
            )
        for sample, path in enumerate(files[text][:count]):
            seed = image_seed(settings.seed, prompt_id, sample)
            yield GeneratedImage("tuned", prompt_id, sample, seed, _picture(path, settings))


def _files_by_prompt(folder: Path) -> defaultdict[str, list[Path]]:
    index, found = folder / INDEX, defaultdict[str, list[Path]](list)
    if not index.is_file():
        raise DataError(
            f"{index}: does not exist; it has a line for each image with file_name and prompt, as JSON"
        )
    for number, line in enumerate(index.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            entry = json.loads(line)
            found[entry["prompt"]].append(folder / entry["file_name"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{index}: line {number} must be a JSON object with the texts file_name and prompt, got {line!r}"
            ) from error
    return found


def _picture(path: Path, settings: GenerateParams) -> NDArray[np.uint8]:
    try:
        picture = np.array(Image.open(path).convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises these for damaged files
        raise DataError(f"{path}: not a readable picture ({error})") from error
    if picture.shape[:2] != (settings.height, settings.width):
        raise DataError(
            f"{path}: must have generate.width x generate.height = {settings.width} x {settings.height} pixels, got "
            f"{picture.shape[1]} x {picture.shape[0]}; resize the images, or change both keys"
        )
    return picture
