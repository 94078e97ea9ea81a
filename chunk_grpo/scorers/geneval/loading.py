"""Models in the transformers layout, with every weight in its place or an error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.utils import logging

from chunk_grpo.errors import DataError

_SHOWN = 3
"""Names in a message."""


@dataclass(frozen=True)
class Exceptions:
    """Weights in which files of older versions of transformers differ from today's model, to no effect.

    Attributes:
        unused: Pattern of names that a file may lack, since the model computes nothing from them; None: it has all.
        computed: Pattern of names that a file may have too much, since the model computes them; None: none.
    """

    unused: str | None = None
    computed: str | None = None


def load_strict(
    key: str, model_class: Any, folder: Path, dtype: torch.dtype, device: str, exceptions: Exceptions
) -> Any:
    """A model for inference whose weights are exactly those of its files.

    Args:
        key: Of params.yaml, such as scorers.geneval.detector, for messages.
        model_class: A class with from_pretrained.
        folder: With config.json and the weights.
        dtype: Of the weights in memory.
        device: Such as cuda:0.
        exceptions: Differences that are none.

    Raises:
        DataError: A weight is missing, surplus or of another shape, or a file cannot be read.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # its report of the differences would list the harmless ones
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
    finally:
        logging.set_verbosity(verbosity)
    faults = {
        "are missing": _without(exceptions.unused, report["missing_keys"]),
        "are not of the model": _without(exceptions.computed, report["unexpected_keys"]),
        "have another shape": [name for name, *_ in report["mismatched_keys"]],
        "cannot be read": report["error_msgs"],
    }
    if found := [f"{len(names)} {fault} ({_some(names)})" for fault, names in faults.items() if names]:
        raise DataError(
            f"{key}: weights in {folder} do not fit {model_class.__name__} with its config.json: "
            f"{'; '.join(found)}. Give the folder of one whole model."
        )
    return model.to(device).eval().requires_grad_(False)


def _without(pattern: str | None, names: Iterable[str]) -> list[str]:
    return [name for name in names if pattern is None or not re.search(pattern, name)]


def _some(names: Iterable[str]) -> str:
    ordered = sorted(map(str, names))
    return ", ".join(ordered[:_SHOWN]) + (", ..." if len(ordered) > _SHOWN else "")
