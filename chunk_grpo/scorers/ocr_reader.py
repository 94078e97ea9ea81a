"""Readers of text in images: rapidocr's detection and recognition models, on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession
from rapidocr import RapidOCR

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.pictures import MAX_THREADS
from chunk_grpo.scorers.running.checkpoints import readable

Reader: TypeAlias = Callable[[NDArray[np.uint8]], str]
"""Function from an image [H, W, 3], RGB, to its text: the lines from top to bottom, joined."""

MODEL_FILES = ("*det*.onnx", "*rec*.onnx")
"""Models that find lines of text and read them, such as PP-OCRv6_det_small.onnx and PP-OCRv6_rec_small.onnx."""

_CHARACTERS = "character"
"""Key of the metadata of a recognition model under which its characters are listed."""


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
