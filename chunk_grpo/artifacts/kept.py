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

_RESULTS = "results"

_DVC = "DVC_ROOT"
"""Variable that DVC sets for the commands of stages."""


class Kept:
    """The folder of an unfinished computation: its parts, and in the end links to its outputs until dvc.lock has them.

    DVC hashes the outputs of a stage before it writes dvc.lock, which takes minutes for a large policy, and deletes
    them when the stage runs again. A kill in between would lose the computation.
    """

    def __init__(self, folder: Path, outputs: Mapping[str, str]) -> None:
        """Create no files yet; this computation alone uses `folder`.

        `outputs` has paths by name. At least one is a file with content of its own.
        """
        self.folder, self._outputs, self._results = folder, outputs, folder / _RESULTS

    def rows(self, part: int, make: Callable[[], list[Row]]) -> list[Row]:
        """Rows of the scores table of a part. If it has none yet, `make` makes them, and one step writes them."""
        path = self._path(part)
        if path.exists():
            kept: list[Row] = read_table(path, "scores").to_pylist()
            return kept
        rows = make()
        write_table(table_from_rows(rows, "scores"), path, "scores")
        return rows

    def drop(self, parts: Iterable[int]) -> None:
        """Delete the rows of these parts; the next run makes them again."""
        for part in parts:
            self._path(part).unlink(missing_ok=True)

    def has_ended(self) -> bool:
        """Whether the computation has ended, and its results are kept."""
        return self._results.exists()

    def take_over(self) -> None:
        """Write the outputs of a computation that ended, and was killed before DVC had recorded them."""
        sys.stderr.write(f"{self.folder}: had ended; its results are taken over\n")
        for name, location in self._outputs.items():
            kept = self._results / name
            if kept.is_dir():
                with output_dir(location) as folder:
                    shutil.copytree(kept, folder, copy_function=link, dirs_exist_ok=True)
            else:
                with output_file(location) as file:
                    link(kept, file)
        self.forget()

    def end(self, *, keep_parts: bool = False) -> None:
        """Link to the outputs where DVC is still to record them, and remove the parts.

        Only under DVC, and only for outputs on a disk. `keep_parts`: together with the links, the parts remain.
        """
        if _DVC in os.environ and not any(map(is_remote, self._outputs.values())):
            self._link()
        if not (keep_parts and self.has_ended()):
            self.forget()

    def _link(self) -> None:
        draft = self._results.with_suffix(".partial")
        for older in (draft, self._results):
            if older.exists():
                shutil.rmtree(older)
        draft.mkdir(parents=True)
        for name, location in self._outputs.items():
            if Path(location).is_dir():
                shutil.copytree(location, draft / name, copy_function=link)
            else:
                link(location, draft / name)
        draft.replace(self._results)

    def forget(self) -> None:
        """Remove the parts, and the folder if no results are kept in it; of checkpoints the manifests first."""
        for path in sorted(self.folder.glob("*/manifest.json")):
            path.unlink()
        for path in self.folder.glob("*"):
            if path != self._results:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self.folder.exists() and not self.has_ended():
            self.folder.rmdir()

    def _path(self, part: int) -> Path:
        return self.folder / f"batch-{part:06d}.parquet"


def forget_recorded(root: Path = Path(), remove_copies: Callable[[str], None] | None = None) -> None:
    """Remove the computations of a workspace whose outputs dvc.lock has.

    `remove_copies` removes copies of checkpoints at a location; None: trainings with copies stay.
    """
    if not (kept := sorted((root / KEPT).glob(f"*/{_RESULTS}"))):
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
        with input_file(location) as path, path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()


def link(source: str | Path, target: str | Path) -> None:
    """Link a file; copy it where there are no hard links, as between disks."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
