"""Resume states of stages that have not ended well: checkpoints of trainings, scores of finished batches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chunk_grpo.artifacts.layout import PARAMS, Layout
from chunk_grpo.config import read_raw_params
from chunk_grpo.training.journal import FILE

_LOCKS = "locks"
"""Folder of lock files beside the states."""


@dataclass(frozen=True)
class Unfinished:
    """State of one computation."""

    folder: Path
    """Folder with the state."""
    name: str
    """Preset, variant and seed of a training; what kind of state it is, if they are not known."""
    time: float
    """Time of the last change, in seconds since 1970."""
    size: int
    """Size in bytes."""

    def remove(self) -> None:
        """Remove the state; the computation then begins anew. No stage may be using it."""
        shutil.rmtree(self.folder)


def unfinished(states: Iterable[Path], workspaces: Iterable[Path]) -> list[Unfinished]:
    """The states of stages that have not ended well, or are running, oldest first.

    `states` has one folder per computation; journals in `workspaces`, logs/VARIANT/seed-N/progress.jsonl, name the
    computations.
    """
    names = {identity: name for workspace in workspaces for identity, name in _trainings(workspace)}
    found = []
    for folder in (path for state in states if state.is_dir() for path in state.iterdir()):
        if folder.is_dir() and folder.name != _LOCKS:
            files = [path.stat() for path in folder.rglob("*") if path.is_file()]
            kind = "scores" if any(folder.glob("batch-*")) else "unknown training"
            newest = max((file.st_mtime for file in files), default=folder.stat().st_mtime)
            size = sum(file.st_size for file in files)
            found.append(Unfinished(folder, names.get(folder.name, kind), newest, size))
    return sorted(found, key=lambda each: each.time)


def _trainings(workspace: Path) -> Iterable[tuple[str, str]]:
    """Identity and name of each training with a journal in a workspace."""
    for journal in sorted(workspace.glob(f"{Layout().journal_folder('*', '*')}/{FILE}")):
        with journal.open("rb") as stream:
            first = stream.readline()
        if first.endswith(b"\n"):
            preset = read_raw_params(workspace / PARAMS).get("composed_from", "?")
            yield json.loads(first)["identity"], f"{preset} {journal.parts[-3]} {journal.parts[-2]}"
