"""GenEval's colours: a CLIP model names the colour of a detected object, which it sees alone on grey.

Source: color_classification and ImageCrops of evaluation/evaluate_images.py, github.com/djghosh13/geneval (commit
af4902f), and zero_shot_classifier of clip_benchmark 1.4.0, which it calls.

Shape letters: K crops, H height, W width, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize
from transformers import CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.geneval.loading import Exceptions, load_strict
from chunk_grpo.scorers.geneval.records import COLOURS

CLASSIFIER_FILES = (
    "config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors|pytorch_model.bin",
)

TEMPLATES = (
    "a photo of a {colour} {name}",
    "a photo of a {colour}-colored {name}",
    "a photo of a {colour} object",
)
"""Texts whose mean stands for a colour of a class."""

BACKGROUND = 0x99
"""Grey of all three channels outside the mask: the original's #999."""

CROPS_AT_ONCE = 16


class ColourClassifier:
    """A loaded CLIP model with the texts of the colours."""

    def __init__(self, model: Any, tokenizer: Any, processor: Any, device: str) -> None:
        """Keep the parts.

        Args:
            model: A CLIPModel.
            tokenizer: Its tokenizer.
            processor: Its image processor.
            device: Where the model is.
        """
        self.model, self.tokenizer, self.processor, self.device = model, tokenizer, processor, device
        self._directions: dict[str, Tensor] = {}

    @torch.inference_mode()
    def classify(self, crops: Sequence[NDArray[np.uint8]], class_names: Sequence[str]) -> list[str]:
        """Name colours.

        Args:
            crops: K pictures [H, W, 3] of any size each, from `crop_object`.
            class_names: K names: what each one shows.

        Returns:
            K of COLOURS.

        Raises:
            DataError: The model's answer is not finite.
        """
        colours: list[str] = []
        for first in range(0, len(crops), CROPS_AT_ONCE):
            rows = slice(first, first + CROPS_AT_ONCE)
            directions = torch.stack([self.directions(name) for name in class_names[rows]])  # [K, 10, D]
            similarities = torch.einsum("kd,kcd->kc", self._image_features(crops[rows]), directions)
            if not similarities.isfinite().all():
                raise DataError(
                    "GenEval's colour classifier gave numbers that are not finite; use float32, and check its weights"
                )
            colours += [COLOURS[index] for index in similarities.argmax(dim=1).tolist()]
        return colours

    @torch.inference_mode()
    def directions(self, class_name: str) -> Tensor:
        """Unit vectors of the colours of a class, float32 [10, D]: the normalised mean of the normalised TEMPLATES."""
        if class_name not in self._directions:
            texts = [
                template.format(colour=colour, name=class_name)
                for colour in COLOURS
                for template in TEMPLATES
            ]
            tokens = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt").to(self.device)
            features = self.model.get_text_features(
                input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
            ).pooler_output.float()
            of_texts = normalize(features, dim=-1).unflatten(0, (len(COLOURS), len(TEMPLATES)))
            self._directions[class_name] = normalize(of_texts.mean(dim=1), dim=-1)
        return self._directions[class_name]

    def _image_features(self, crops: Sequence[NDArray[np.uint8]]) -> Tensor:
        """Unit vectors, float32 [K, D]."""
        # The format is told: a crop may be three pixels high.
        inputs = self.processor(images=list(crops), input_data_format="channels_last", return_tensors="pt")
        pixels = inputs["pixel_values"].to(self.device, self.model.dtype)
        return normalize(self.model.get_image_features(pixel_values=pixels).pooler_output.float(), dim=-1)


def load_clip(key: str, folder: Path, dtype: torch.dtype, device: str) -> Any:
    """Load the CLIPModel of a classifier.

    Args:
        key: Of params.yaml, such as scorers.geneval.classifier.
        folder: With CLASSIFIER_FILES.
        dtype: Of the weights.
        device: Such as cuda:0.

    Raises:
        DataError: The files are damaged, or those of another model.
    """
    return load_strict(key, CLIPModel, folder, dtype, device, Exceptions())


def make_classifier(key: str, model: Any, folder: Path, device: str) -> ColourClassifier:
    """A classifier around a loaded CLIPModel.

    Args:
        key: Of params.yaml, for messages.
        model: From `load_clip`.
        folder: With the tokenizer and the image processor.
        device: Where the model is.

    Raises:
        DataError: The tokenizer or the image processor cannot be read.
    """
    try:
        tokenizer = CLIPTokenizer.from_pretrained(folder, local_files_only=True)
        processor = CLIPImageProcessorPil.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # tokenizers and transformers raise anything for damaged files
        raise DataError(f"{key}: {folder} holds no CLIP tokenizer and image processor: {error}") from error
    return ColourClassifier(model, tokenizer, processor, device)


def crop_object(
    image: NDArray[np.uint8], mask: NDArray[np.bool_], box: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """An object alone: grey outside its mask, cropped to its box.

    Args:
        image: [H, W, 3].
        mask: [H, W].
        box: [4]: left, top, right, bottom in whole pixels, right and bottom exclusive.
    """
    left, top, right, bottom = box.astype(np.int64).tolist()
    rows, columns = slice(top, bottom), slice(left, right)
    return np.where(mask[rows, columns, None], image[rows, columns], np.uint8(BACKGROUND))
