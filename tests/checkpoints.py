"""Checkpoints that a training has left in a workspace."""

from pathlib import Path

from chunk_grpo.training.copies import order_of
from chunk_grpo.training.state_files import MANIFEST


def checkpoints(root: Path) -> list[Path]:
    """Folders of the whole checkpoints of all trainings, oldest first."""
    return sorted((path.parent for path in root.glob(f".ckpt/*/*/{MANIFEST}")), key=order_of)


def newest(root: Path) -> int:
    """Iteration of the newest checkpoint; 0 without one."""
    return max((order_of(path)[0] for path in checkpoints(root)), default=0)
