"""Models in the transformers layout, with every weight in its place or an error."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from chunk_grpo.errors import DataError

_SHOWN = 3
"""Names in a message."""


def load_strict(key: str, model_class: Any, folder: Path, dtype: torch.dtype, device: str) -> Any:
    """A model for inference whose weights are exactly those of its files.

    Buffers that older versions of transformers stored and newer ones compute (position_ids,
    relative_position_index) are no surplus: the model's class names them.

    Args:
        key: Of params.yaml, such as scorers.geneval.detector, for messages.
        model_class: A class with from_pretrained.
        folder: With config.json and the weights.
        dtype: Of the weights in memory.
        device: Such as cuda:0.

    Raises:
        DataError: A weight is missing, surplus or of another shape, or a file cannot be read.
    """
    try:
        model, report = model_class.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # so that the report names them
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise DataError(f"{key}: {folder} cannot be read as a {model_class.__name__}: {error}") from error
    faults = {
        "are missing": report["missing_keys"],
        "are not of the model": report["unexpected_keys"],
        "have another shape": [name for name, *_ in report["mismatched_keys"]],
        "cannot be read": report["error_msgs"],
    }
    if found := [f"{len(names)} {fault} ({_some(names)})" for fault, names in faults.items() if names]:
        raise DataError(
            f"{key}: weights in {folder} do not fit {model_class.__name__} with its config.json: "
            f"{'; '.join(found)}. Give the folder of one whole model."
        )
    return model.to(device).eval().requires_grad_(False)


def _some(names: Iterable[str]) -> str:
    ordered = sorted(map(str, names))
    return ", ".join(ordered[:_SHOWN]) + (", ..." if len(ordered) > _SHOWN else "")
