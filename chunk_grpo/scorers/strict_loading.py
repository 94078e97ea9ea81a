"""Loads models strictly: missing, surplus or misshapen weights raise an error that names them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.utils import logging

from chunk_grpo.errors import DataError

Shape = Sequence[int]

_SHOWN = 5
"""Maximum number of weights that a message names."""


@dataclass(frozen=True)
class KnownDifferences:
    """Harmless differences between files of older transformers versions and the current model.

    Attributes:
        may_lack: Pattern of weights that the model does not use; None: a file must have all weights.
        may_have: Pattern of surplus weights, which the model computes itself; None: a file may have no surplus weights.
    """

    may_lack: str | None = None
    may_have: str | None = None


NO_DIFFERENCES = KnownDifferences()


def read_config(key: str, folder: Path, model_type: str) -> dict[str, Any]:
    """Read a model's config.json in the transformers layout.

    Args:
        key: Key of params.yaml, such as scorers.geneval.detector, for messages.
        folder: Folder with config.json.
        model_type: Required model type, such as clip.

    Raises:
        DataError: The file cannot be read, or the model type differs.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        found = config.get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{key}: {path} cannot be read: {error}. Fetch the files again.") from error
    if found != model_type:
        raise DataError(f"{key}: must be a model of type {model_type}, but model_type in {path} is {found!r}")
    return dict(config)


def load_strict(
    key: str, model_class: Any, folder: Path, dtype: torch.dtype, known: KnownDifferences = NO_DIFFERENCES
) -> Any:
    """Load a model for inference on the CPU, with exactly the weights of its files.

    Args:
        key: Key of params.yaml, such as scorers.geneval.detector, for messages.
        model_class: Class with from_pretrained.
        folder: Folder with config.json and the weights.
        dtype: Dtype of the weights in memory.
        known: Harmless differences to accept.

    Raises:
        DataError: A weight is missing, surplus or of another shape, or a file cannot be read.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # transformers would also log the harmless differences
    try:
        model, report = model_class.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # so that the report names them
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError) as error:
        raise DataError(
            f"{key}: {folder} cannot be read as a {model_class.__name__} ({type(error).__name__}: {error}). Fetch the "
            "files again."
        ) from error
    finally:
        logging.set_verbosity(verbosity)
    where = f"{key}: weights in {folder}"
    if report["error_msgs"]:
        raise DataError(f"{where} cannot be read: {report['error_msgs'][0]}. Fetch the files again.")
    _refuse(
        where,
        _without(known.may_lack, report["missing_keys"]),
        _without(known.may_have, report["unexpected_keys"]),
        report["mismatched_keys"],
        f"config.json beside them belongs to another {model_class.__name__}, or the files are from two revisions.",
    )
    return model.eval().requires_grad_(False)


def check_shapes(
    where: str, wanted: Mapping[str, Shape], found: Mapping[str, Shape], may_have: Iterable[str], rule: str
) -> None:
    """Check that a file's weights match a network's exactly.

    Args:
        where: Key of params.yaml and file, for messages.
        wanted: Name to shape of the network's weights.
        found: Name to shape of the file's weights.
        may_have: Surplus names that the file may have.
        rule: Sentence about the required files, for messages.

    Raises:
        DataError: Weights are missing, surplus or of another shape; the message names them.
    """
    both = sorted(wanted.keys() & found.keys())
    _refuse(
        where,
        wanted.keys() - found.keys(),
        found.keys() - wanted.keys() - set(may_have),
        [(name, found[name], wanted[name]) for name in both if tuple(found[name]) != tuple(wanted[name])],
        rule,
    )


def _refuse(
    where: str,
    missing: Iterable[str],
    surplus: Iterable[str],
    misshapen: Iterable[tuple[str, Shape, Shape]],
    rule: str,
) -> None:
    wrong = [
        *(f"{name} is missing" for name in sorted(missing)),
        *(f"{name} is unknown to the model" for name in sorted(surplus)),
        *(f"{name} is {list(found)} in place of {list(wanted)}" for name, found, wanted in sorted(misshapen)),
    ]
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise DataError(f"{where} do not fit the model: {'; '.join(wrong[:_SHOWN])}{more}. {rule}")


def _without(pattern: str | None, names: Iterable[str]) -> list[str]:
    return [name for name in names if pattern is None or not re.search(pattern, name)]
