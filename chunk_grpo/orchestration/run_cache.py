"""DVC's run cache: read its entries, and remove those left unfinished, or whose outputs are gone."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

_WRITTEN_WITHIN = 3.0  # seconds; DVC writes an entry of some kilobytes right after making its folder

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""YAML loader for the many files of DVC; the one in C is ten times as fast."""


def object_file(cache: Path, md5: str) -> Path:
    """File of an output in the cache; its MD5 ends in `.dir` for a folder, whose list of files it is then."""
    return cache / "files" / "md5" / md5[:2] / md5[2:]


def entries(cache: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Each entry's file and its outputs (path, md5, size), except entries that are damaged or being written."""
    for file in (cache / "runs").glob("??/*/*"):
        with suppress(yaml.YAMLError, FileNotFoundError):  # DVC removes damaged ones itself
            content = yaml.load(file.read_bytes(), LOADER)
            if file.suffix != ".tmp" and isinstance(content, dict):
                yield file, content.get("outs", [])


def forget_unusable(cache: Path) -> None:
    """Remove the entries with an output that the cache lacks; no other process may write to the cache.

    DVC takes the newest entry of a computation alone: one without outputs hides an older one that has them.
    """
    for file, outputs in entries(cache):
        if not all(object_file(cache, output["md5"]).exists() for output in outputs):
            file.unlink()
            _clear(file.parent)


def forget_unfinished(runs: Path) -> None:
    """Remove unfinished entries of the folder `runs`, and folders without an entry.

    DVC writes the entry RUNS/XX/KEY/VALUE under a temporary name first. If a folder KEY has no entry, DVC fails instead
    of running the stage. RUNS need not exist; other runs may clean it at the same time.
    """
    for folder in runs.glob("??/*"):
        with suppress(FileNotFoundError):  # removed by another run
            if (
                time.time() - folder.stat().st_mtime >= _WRITTEN_WITHIN
            ):  # a newer one may still be being written
                _clear(folder)


def _clear(folder: Path) -> None:
    for entry in folder.glob("*.tmp"):
        entry.unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # both mean: the folder has an entry
            raise
