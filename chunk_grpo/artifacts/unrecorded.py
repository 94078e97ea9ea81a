"""Results of stages that DVC has not recorded yet."""

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from chunk_grpo.artifacts.storage import is_remote, join, output_dir, output_file
from chunk_grpo.environment import CHECKPOINTS

KEPT = Path(".ckpt")
"""One folder per unfinished computation, named by its digest; removed when the stage succeeds, or under DVC when
dvc.lock has its outputs."""

_DVC = "DVC_ROOT"
"""Variable that DVC sets for the commands of stages."""


class Results:
    """Links to the outputs of a computation in its folder, until dvc.lock has the outputs.

    DVC hashes the outputs of a stage before it writes dvc.lock, which takes minutes for a large policy, and deletes
    them when the stage runs again. A kill in between would lose the computation.
    """

    _NAME = "results"

    def __init__(self, folder: Path, outputs: Mapping[str, str]) -> None:
        """Create no files yet.

        Args:
            folder: Folder of the computation.
            outputs: Paths of the outputs by name. At least one is a file with content of its own.
        """
        self.folder = folder / self._NAME
        self._outputs = outputs

    def exist(self) -> bool:
        """Whether the computation has ended."""
        return self.folder.exists()

    def keep(self) -> None:
        """Link to the outputs; do nothing without DVC, which alone records them, or if they are not on a disk."""
        if _DVC not in os.environ or any(map(is_remote, self._outputs.values())):
            return
        draft = self.folder.with_suffix(".partial")
        for older in (draft, self.folder):
            if older.exists():
                shutil.rmtree(older)
        draft.mkdir(parents=True)
        for name, location in self._outputs.items():
            if Path(location).is_dir():
                shutil.copytree(location, draft / name, copy_function=_link)
            else:
                _link(location, draft / name)
        draft.replace(self.folder)

    def restore(self) -> None:
        """Write the outputs."""
        for name, location in self._outputs.items():
            kept = self.folder / name
            if kept.is_dir():
                with output_dir(location) as folder:
                    shutil.copytree(kept, folder, copy_function=_link, dirs_exist_ok=True)
            else:
                with output_file(location) as file:
                    _link(kept, file)

    @classmethod
    def all_in(cls, root: Path) -> list[Path]:
        """Folders of all kept results of a workspace."""
        return sorted((root / KEPT).glob(f"*/{cls._NAME}"))


def forget_recorded(root: Path = Path(), remove_copies: Callable[[str], None] | None = None) -> None:
    """Remove the computations of a workspace whose outputs dvc.lock has.

    Args:
        root: Folder of the workspace.
        remove_copies: Removes copies of checkpoints at a location. None: trainings with copies stay.
    """
    if not (kept := Results.all_in(root)):
        return
    lock, copies = root / "dvc.lock", os.environ.get(CHECKPOINTS)
    recorded = lock.read_text("utf-8") if lock.exists() else ""
    for results in kept:
        if not all(_md5(path) in recorded for path in results.iterdir() if path.is_file()):
            continue
        if copies and not any(results.parent.glob("batch-*")):
            if remove_copies is None:
                continue
            remove_copies(join(copies, results.parent.name))
        with suppress(FileNotFoundError):  # another process removes it too
            shutil.rmtree(results.parent)


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()


def _link(source: str | Path, target: str | Path) -> None:
    """Link a file; copy it where there are no hard links, as between disks."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
