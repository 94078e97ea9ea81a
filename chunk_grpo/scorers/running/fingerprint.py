"""Identity of a scorer: a hash of everything that could change a score, and of nothing else."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chunk_grpo.config.scorer_settings import ScorerSettings, Weights
from chunk_grpo.scorers.running.checkpoints import find_checkpoint

_READ_BESIDES = ("*.json", "*.txt", "*.jinja", "*.model")
"""Files of a local folder that are hashed beside the required ones: optional configuration and tokenizer files."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


def scoring_settings(settings: ScorerSettings) -> dict[str, Any]:
    """Settings that could change a score, as JSON values.

    Models in local folders are left out: their files identify them, not their paths.
    """
    content = settings.model_dump(mode="json", exclude=set(settings.NON_SCORING_FIELDS))
    return {name: value for name, value in content.items() if not _is_local(getattr(settings, name))}


def spec_hash(
    key: str,
    version: int,
    settings: ScorerSettings,
    files: Mapping[str, Sequence[str]],
    besides: Mapping[str, str] | None = None,
) -> str:
    """Hash of sixteen hexadecimal digits that changes when the same image could score differently.

    A local folder is identified by the full content of the files that are read, a hub id by the commit of its revision.

    Args:
        key: Name of the scorer in params.yaml, for messages.
        version: Version of the scoring code.
        settings: The scorer's section.
        files: Field of the settings to the patterns of the required files, as `find_checkpoint` takes them.
        besides: Further inputs that could change a score, such as the content of a file that a setting names.
    """
    models = {
        field: _model(f"scorers.{key}.{field}", getattr(settings, field), patterns) for field, patterns in files.items()
    }
    identity = json.dumps([version, scoring_settings(settings), models, dict(besides or {})], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _is_local(value: object) -> bool:
    return isinstance(value, Weights) and Path(value.checkpoint).is_dir()


def _model(key: str, weights: Weights, patterns: Sequence[str]) -> str:
    """Digest of the local files, or the commit on the hub."""
    if _is_local(weights):
        return _digest(Path(weights.checkpoint), patterns)
    if weights.revision and _COMMIT.fullmatch(weights.revision):
        return weights.revision
    return find_checkpoint(key, weights, patterns).name  # the hub's cache names a folder by its commit


def _digest(folder: Path, patterns: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in _files_read(folder, patterns):
        digest.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as stream:
            while block := stream.read(2**24):
                digest.update(block)
    return digest.hexdigest()


def _files_read(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Sorted by name, without hidden files: `hf download` writes timestamps into .cache."""
    wanted = [*_READ_BESIDES, *(part for pattern in patterns for part in pattern.split("|"))]
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in parts)
        if path.is_file() and not hidden and any(fnmatch.fnmatch("/".join(parts), p) for p in wanted):
            yield path
