"""Stores of checkpoints, and the checkpoints that a training has left in a workspace."""

from pathlib import Path

from chunk_grpo.training.checkpoint import CheckpointStore, TrainingState
from chunk_grpo.training.copies import Copies, order_of
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.state_files import MANIFEST


def store_in(folder: Path, keep: int = 5, identity: str = "code-1", copies: str | None = None) -> CheckpointStore:
    """The checkpoints in a folder, with copies at a location."""
    processes = Processes()
    made = None if copies is None else Copies(copies, folder, processes)
    return CheckpointStore(folder, identity, keep, processes, made)


def save(store: CheckpointStore, state: TrainingState, *, copied: bool = True) -> None:
    """Write a checkpoint, and wait for it."""
    store.begin(state, copied=copied)
    store.finish()


def checkpoints(root: Path) -> list[Path]:
    """Folders of the whole checkpoints of all trainings, oldest first."""
    return sorted((path.parent for path in root.glob(f".ckpt/*/*/{MANIFEST}")), key=order_of)


def newest(root: Path) -> int:
    """Iteration of the newest checkpoint; 0 without one."""
    return max((order_of(path)[0] for path in checkpoints(root)), default=0)
