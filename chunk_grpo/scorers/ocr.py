"""Rendering of text: edit distance between the text that is read in an image and the text that it should show.

Flow-GRPO's reward for text (Liu et al. 2025, arXiv:2505.05470), yifan123/flow_grpo at ac4c86e, flow_grpo/ocr.py. There
PaddleOCR reads the images, here rapidocr's detection and recognition models, on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession
from rapidfuzz.distance import Levenshtein
from rapidocr import RapidOCR

from chunk_grpo.config.scorers import OcrScorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.pictures import MAX_THREADS
from chunk_grpo.scorers.running.checkpoints import readable
from chunk_grpo.scorers.running.configured import ConfiguredScorer
from chunk_grpo.scorers.running.fingerprint import spec_hash

Reader: TypeAlias = Callable[[NDArray[np.uint8]], str]
"""Function from an image [H, W, 3], RGB, to its text: the lines from top to bottom, joined."""

MODEL_FILES = ("*det*.onnx", "*rec*.onnx")
"""Models that find lines of text and read them, such as PP-OCRv6_det_small.onnx and PP-OCRv6_rec_small.onnx."""

_CHARACTERS = "character"
"""Key of the metadata of a recognition model under which its characters are listed."""


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


def load_reader(key: str, folder: Path | None) -> Reader:
    """Load rapidocr, with a folder's file for each of `MODEL_FILES`, or without a folder the package's models.

    Lines below rapidocr's default confidence of 0.5 are ignored, and lines are not turned by 180 degrees (Flow-GRPO:
    cls=False). DataError if a model is missing, damaged or ambiguous, or the recognition model does not list its
    characters.
    """
    settings: dict[str, Any] = {
        "Global.log_level": "critical",  # it warns of each image without text
        "Global.use_cls": False,
        "EngineConfig.onnxruntime.intra_op_num_threads": min(MAX_THREADS, os.cpu_count() or 1),
    }
    if folder is not None:
        detection, recognition = (_only_file(key, folder, pattern) for pattern in MODEL_FILES)
        _metadata(key, detection)
        if _CHARACTERS not in _metadata(key, recognition):
            raise DataError(
                f"{key}: {recognition} has no list of its characters in its metadata ({_CHARACTERS}). Use a model that "
                "was converted for rapidocr."
            )
        settings |= {"Det.model_path": str(detection), "Rec.model_path": str(recognition)}
    engine = RapidOCR(params=settings)

    def read(image: NDArray[np.uint8]) -> str:
        found: Any = engine(np.ascontiguousarray(image[..., ::-1]))  # it takes BGR
        return "".join(found.txts or ())

    return read


def _only_file(key: str, folder: Path, pattern: str) -> Path:
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise DataError(f"{key}: needs one file {pattern} in {folder}, got {names}")
    return files[0]


def _metadata(key: str, path: Path) -> dict[str, str]:
    with readable(f"{key}: {path} cannot be read"):
        session = InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return dict(session.get_modelmeta().custom_metadata_map)
