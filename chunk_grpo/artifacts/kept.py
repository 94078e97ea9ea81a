"""What a stage keeps outside DVC's outputs, which DVC deletes before each run: unfinished and unrecorded work."""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts.io import read_table, table_from_rows, write_table
from chunk_grpo.artifacts.storage import Location, input_file, is_remote, join, output_dir, output_file
from chunk_grpo.environment import CHECKPOINTS

KEPT = Path(".ckpt")
"""One folder per unfinished computation, named by its digest; removed when the stage succeeds, or under DVC when
dvc.lock has its outputs."""

Row = dict[str, Any]

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

    def take_over(self) -> None:
        """Write the outputs of a computation that ended, and was killed before DVC had recorded them."""
        sys.stderr.write(f"{self.folder.parent}: had ended; its results are taken over\n")
        for name, location in self._outputs.items():
            kept = self.folder / name
            if kept.is_dir():
                with output_dir(location) as folder:
                    shutil.copytree(kept, folder, copy_function=_link, dirs_exist_ok=True)
            else:
                with output_file(location) as file:
                    _link(kept, file)
        self.forget()

    def end(self) -> None:
        """Keep the outputs where DVC is still to record them, and remove the computation."""
        self.keep()
        self.forget()

    def forget(self) -> None:
        """Remove the computation, but not its outputs.

        Checkpoints of iterations are removed first: if the process is killed in between, a remaining one still has the
        best policies that it needs.
        """
        computation = self.folder.parent
        if not computation.exists():
            return  # no checkpoint was due before training stopped early
        for path in sorted(computation.glob("iteration-*.pt")):
            path.unlink()
        if not self.exist():
            shutil.rmtree(computation)
            return
        for path in computation.iterdir():
            if path != self.folder:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    @classmethod
    def all_in(cls, root: Path) -> list[Path]:
        """Folders of all kept results of a workspace."""
        return sorted((root / KEPT).glob(f"*/{cls._NAME}"))


class KeptScores:
    """Rows of the scores table, one atomically written file per batch."""

    def __init__(self, folder: Path) -> None:
        """Create no files yet; this computation alone uses the folder."""
        self._folder = folder

    def rows(self, batch: int, score: Callable[[], list[Row]]) -> list[Row]:
        """Return the stored rows of a batch; if there are none, compute them with `score` and store them."""
        path = self._path(batch)
        if path.exists():
            kept: list[Row] = read_table(path, "scores").to_pylist()
            return kept
        rows = score()
        write_table(table_from_rows(rows, "scores"), path, "scores")
        return rows

    def drop(self, batches: Iterable[int]) -> None:
        """Delete these batches; the next run scores them again."""
        for batch in batches:
            self._path(batch).unlink(missing_ok=True)

    def end(self, table: str) -> None:
        """Remove the folder, or under DVC keep it until dvc.lock has the table of all rows."""
        results = Results(self._folder, {"out": table})
        results.keep()
        if not results.exist():
            self.forget()

    def forget(self) -> None:
        """Remove the folder, once the rows are written elsewhere."""
        if self._folder.exists():
            shutil.rmtree(self._folder)

    def _path(self, batch: int) -> Path:
        return self._folder / f"batch-{batch:06d}.parquet"


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


def add_files(digest: "hashlib._Hash", locations: Iterable[Location]) -> None:
    """Add the content of each file to a digest."""
    for location in locations:
        content = hashlib.sha256()
        with input_file(location) as path, path.open("rb") as stream:
            while block := stream.read(2**24):
                content.update(block)
        digest.update(content.digest())


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()


def _link(source: str | Path, target: str | Path) -> None:
    """Link a file; copy it where there are no hard links, as between disks."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
