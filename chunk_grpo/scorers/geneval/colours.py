"""GenEval's colours: a CLIP model names the colour of a detected object, cut out on grey.

Source: color_classification and ImageCrops of evaluation/evaluate_images.py, github.com/djghosh13/geneval (commit
af4902f), and zero_shot_classifier of clip_benchmark 1.4.0, which it calls.

Shape letters: K crops, H height, W width, D features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import FloatArray
from chunk_grpo.scorers.clip_model import ClipEncoder, ClipProcessor, unit
from chunk_grpo.scorers.geneval.records import COLOURS

TEMPLATES = ("a photo of a {colour} {name}", "a photo of a {colour}-colored {name}", "a photo of a {colour} object")
"""Texts whose mean embedding represents a colour of a class."""

BACKGROUND = 0x99
"""Grey of all three channels outside the mask: the original's #999."""

CROPS_AT_ONCE = 16


class ColourClassifier:
    """A CLIP model with the texts of the colours."""

    def __init__(self, encoder: ClipEncoder, processor: ClipProcessor) -> None:
        """Keep a CLIP model with its processor."""
        self.encoder, self.processor = encoder, processor
        self._directions: dict[str, FloatArray] = {}

    def classify(self, crops: Sequence[NDArray[np.uint8]], class_names: Sequence[str]) -> list[str]:
        """Classify the colours of objects.

        Args:
            crops: K images [H, W, 3] from `crop_object`; sizes may differ.
            class_names: Class name of each of the K objects.

        Returns:
            K colours from COLOURS.

        Raises:
            DataError: The model's output is not finite.
        """
        colours: list[str] = []
        for first in range(0, len(crops), CROPS_AT_ONCE):
            rows = slice(first, first + CROPS_AT_ONCE)
            directions = np.stack([self.directions(name) for name in class_names[rows]])  # [K, 10, D]
            features = self.encoder.embed_images(self.processor.pixels(crops[rows]))
            similarities = np.einsum("kd,kcd->kc", features, directions)
            if not np.isfinite(similarities).all():
                raise DataError(
                    "GenEval's colour classifier gave numbers that are not finite; use float32, and check its weights"
                )
            colours += [COLOURS[index] for index in similarities.argmax(axis=1)]
        return colours

    def directions(self, class_name: str) -> FloatArray:
        """Unit vectors of a class's colours, float64 [10, D]: normalised means of normalised TEMPLATES embeddings."""
        if class_name not in self._directions:
            texts = [template.format(colour=colour, name=class_name) for colour in COLOURS for template in TEMPLATES]
            features = self.encoder.embed_texts(*self.processor.tokens(texts))
            of_texts = features.reshape(len(COLOURS), len(TEMPLATES), -1)
            self._directions[class_name] = unit(of_texts.mean(axis=1))
        return self._directions[class_name]


def crop_object(image: NDArray[np.uint8], mask: NDArray[np.bool_], box: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Cut out an object: grey outside its mask, cropped to its box.

    Args:
        image: Image [H, W, 3].
        mask: Mask of the object [H, W].
        box: Box of the object [4]: left, top, right, bottom in whole pixels, right and bottom exclusive.
    """
    left, top, right, bottom = box.astype(np.int64).tolist()
    rows, columns = slice(top, bottom), slice(left, right)
    return np.where(mask[rows, columns, None], image[rows, columns], np.uint8(BACKGROUND))
