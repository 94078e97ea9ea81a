"""Finds a scorer's model files in a local folder, or downloads them into the hub's cache."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chunk_grpo.config.scorer_settings import Weights
from chunk_grpo.errors import DataError

_GIVE = "Give a folder that holds the model, or its hub id and revision."


def find_checkpoint(key: str, weights: Weights, patterns: Sequence[str]) -> Path:
    """Folder with a model's files, which are downloaded from the hub if `checkpoint` is no local folder.

    DataError if the folder or a file is missing, the name is no valid hub id, or the hub cannot be reached. The message
    says how to get the files.

    Args:
        key: Key of params.yaml, such as scorers.hpsv3.model, for messages.
        weights: Folder, or hub id and revision.
        patterns: Required files, such as "config.json" or "*.safetensors"; each pattern must match at least one file.
            Alternatives in one pattern are separated by |: "*.safetensors|pytorch_model.bin".
    """
    folder = Path(weights.checkpoint)
    if not folder.is_dir():
        if _may_be_hub_id(weights.checkpoint):
            folder = _download(key, weights, patterns)
        else:
            raise DataError(f"{key}.checkpoint: the folder {weights.checkpoint} does not exist. {_how(weights)}")
    elif weights.revision is not None:
        raise DataError(
            f"{key}.revision: must be null for the folder {weights.checkpoint}, got {weights.revision!r}; a folder is "
            "identified by its files."
        )
    missing = _missing(folder, patterns)
    if missing:
        found = ", ".join(_names(folder)[:8]) or "nothing"
        raise DataError(
            f"{key}: no file {missing[0].replace('|', ' or ')} in {folder}, which holds {found}. {_how(weights)}"
        )
    return folder


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Raise a DataError for any error of a library that reads a file: for damaged ones they raise all types.

    Its message begins with `what`: key, file and what is wrong.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{what} ({type(error).__name__}: {error}). Fetch the files again.") from error


def read_config(key: str, folder: Path, model_type: str) -> dict[str, Any]:
    """A model's config.json, of the transformers layout. DataError if it cannot be read, or is of another type."""
    path = folder / "config.json"
    with readable(f"{key}: {path} cannot be read"):
        config = json.loads(path.read_text(encoding="utf-8"))
        found = config.get("model_type")
    if found != model_type:
        raise DataError(f"{key}: must be a model of type {model_type}, but model_type in {path} is {found!r}")
    return dict(config)


def _names(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


def _missing(folder: Path, patterns: Sequence[str]) -> list[str]:
    """Patterns without a matching file for any alternative."""
    names = _names(folder)
    return [p for p in patterns if not any(fnmatch.filter(names, part) for part in p.split("|"))]


def _may_be_hub_id(checkpoint: str) -> bool:
    return not checkpoint.startswith((".", "/", "~")) and len(Path(checkpoint).parts) <= 2


def _download(key: str, weights: Weights, patterns: Sequence[str]) -> Path:
    from huggingface_hub import list_repo_files, snapshot_download
    from huggingface_hub.errors import HFValidationError

    every = [part for pattern in patterns for part in pattern.split("|")]
    repository, revision = weights.checkpoint, weights.revision
    try:
        kept = _kept(repository, revision, every)
        if kept is not None and not _missing(kept, patterns):
            return kept
        names = list_repo_files(repository, revision=revision)
        wanted = [_first_that_is_there(pattern, names) for pattern in patterns]
        return Path(snapshot_download(repository, revision=revision, allow_patterns=wanted))
    except HFValidationError as error:
        raise DataError(
            f"{key}.checkpoint: {repository!r} is neither a local folder nor a valid hub id such as "
            f"openai/clip-vit-large-patch14 ({_first_line(error)}). {_GIVE}"
        ) from error
    except Exception as error:  # the error types depend on the network library of the installed huggingface_hub
        raise DataError(
            f"{key}: {repository} (revision {revision or 'main'}) is no folder here, not in the hub's cache, and could "
            f"not be downloaded ({_first_line(error)}). If the network is only away for now, run the same command "
            f"again later. {_how(weights)}"
        ) from error


def _kept(repository: str, revision: str | None, files: Sequence[str]) -> Path | None:
    """Folder in the hub's cache; None: not downloaded yet."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(files), local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _first_line(error: Exception) -> str:
    """Type of the error and first line of its message; some network errors have no message."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def _first_that_is_there(pattern: str, names: Sequence[str]) -> str:
    """First alternative that matches a file, so that only safetensors or PyTorch files are downloaded."""
    parts = pattern.split("|")
    return next((part for part in parts if fnmatch.filter(names, part)), parts[0])


def _how(weights: Weights) -> str:
    if not _may_be_hub_id(weights.checkpoint):
        return _GIVE
    revision = f" --revision {weights.revision}" if weights.revision else ""
    return (
        f"Where there is a network: `hf download {weights.checkpoint}{revision} --local-dir FOLDER`; then give FOLDER "
        "as checkpoint, with revision null."
    )
