"""Checkpoints of a training run: one file, moved into place whole, so that a kill never leaves half of one."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from chunk_grpo.errors import DataError

FORMAT = "chunk_grpo.training/1"


@dataclass
class TrainingState:
    """All that a run needs to go on: random streams are functions of the iteration and need no state.

    Attributes:
        iteration: Iterations done.
        network: State dict of the policy.
        optimizer: State dict of the optimiser.
        rows: Metric rows (iteration, metric, value) so far.
    """

    iteration: int
    network: dict[str, Any]
    optimizer: dict[str, Any]
    rows: list[tuple[int, str, float]] = field(default_factory=list)


def save_checkpoint(path: Path, state: TrainingState) -> None:
    """Write `state`; a checkpoint that existed stays whole until the new one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as stream:
        torch.save({"format": FORMAT, **vars(state)}, stream)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def load_checkpoint(path: Path) -> TrainingState | None:
    """The state at `path`, or None when there is no checkpoint yet.

    Raises:
        DataError: The file is damaged or of another format.
    """
    if not path.exists():
        return None
    hint = f"delete {path.parent} to train from the start"
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many types for a damaged file
        raise DataError(f"{path}: not a readable checkpoint ({error}); {hint}") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise DataError(f"{path}: not a checkpoint of the format {FORMAT}; {hint}")
    return TrainingState(**content)
