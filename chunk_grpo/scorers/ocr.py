"""Rendering of text: edit distance between the text that is read in an image and the text that it should show.

Flow-GRPO's reward for text (Liu et al. 2025, arXiv:2505.05470), yifan123/flow_grpo at ac4c86e, flow_grpo/ocr.py. There
PaddleOCR reads the images, here a `Reader`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.metadata import version as installed_version

import numpy as np
from rapidfuzz.distance import Levenshtein

from chunk_grpo.config.scorers import OcrScorer
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.ocr_reader import MODEL_FILES, Reader, load_reader
from chunk_grpo.scorers.running.configured import ConfiguredScorer
from chunk_grpo.scorers.running.fingerprint import spec_hash


def compared(text: str) -> str:
    """The text without whitespace, in lower case."""
    return "".join(text.split()).lower()


def text_reward(read: str, target: str) -> float:
    """Similarity of two texts in [0, 1], of which whitespace and case do not count.

    1 - min(d, n) / n, with the Levenshtein distance d, which is 0 if the target is part of the text that was read, and
    the length n of the target. Text that was read besides the target is therefore free if the target is complete.

    Args:
        read: Text in the image.
        target: Text that the image should show, with at least one character that counts.
    """
    read, target = compared(read), compared(target)
    distance = 0 if target in read else Levenshtein.distance(read, target)
    return 1 - min(distance, len(target)) / len(target)


class Ocr(ConfiguredScorer[OcrScorer]):
    """Text in images, in [0, 1]. Detail `contained`: 1 if the text was read without a fault, else 0."""

    version = 1
    needs = frozenset({"prompt", "metadata"})

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        """File patterns of the models; none for those of the package rapidocr."""
        return {} if self.settings.recogniser is None else {"recogniser": MODEL_FILES}

    def spec_hash(self) -> str:
        """Hash of version, settings, model files, and the release of rapidocr, which also has default models."""
        besides = {"rapidocr": installed_version("rapidocr")}
        return spec_hash(self.key, self.version, self.settings, self.files, besides)

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Score the images of a batch."""
        targets = self.parsed(batch, self.settings.target)
        read = [self.models(image) for image in batch.images]
        values = [text_reward(text, target) for text, target in zip(read, targets, strict=True)]
        contained = [compared(target) in compared(text) for text, target in zip(read, targets, strict=True)]
        return Scores(np.array(values, float), {"contained": np.array(contained, float)})

    @cached_property
    def models(self) -> Reader:
        """Reader of text in images."""
        recogniser = self.settings.recogniser
        folder = None if recogniser is None else self.folder("recogniser")
        return self.take_model(("ocr", recogniser), lambda: load_reader(self.where("recogniser"), folder))
