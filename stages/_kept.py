"""State of a stage outside DVC's outs, which DVC removes before a run: a stage that was stopped goes on from it."""

import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import chunk_grpo
import stages
from chunk_grpo.artifacts import Location, input_file, read_table, table_from_rows, write_table

KEPT = Path(".ckpt")
"""Folders of the stages under way, each named by what is computed; one goes away when its stage succeeds."""

Row = dict[str, Any]


def add_code(digest: "hashlib._Hash") -> None:
    """Make all code of the pipeline a part of a digest."""
    for package in (chunk_grpo.__file__, stages.__file__):
        for path in sorted(Path(package).parent.rglob("*.py")):
            digest.update(path.read_bytes())


def add_files(digest: "hashlib._Hash", locations: Iterable[Location]) -> None:
    """Make the bytes of each file a part of a digest."""
    for location in locations:
        content = hashlib.sha256()
        with input_file(location) as path, path.open("rb") as stream:
            while block := stream.read(2**24):
                content.update(block)
        digest.update(content.digest())


class KeptScores:
    """Rows of the table scores, a file for each batch, whole or not there."""

    def __init__(self, folder: Path) -> None:
        """Touch nothing yet.

        Args:
            folder: Of this computation alone.
        """
        self._folder = folder

    def rows(self, batch: int, score: Callable[[], list[Row]]) -> list[Row]:
        """The rows of a batch: those that are kept, or what `score` gives, which is then kept."""
        path = self._path(batch)
        if path.exists():
            kept: list[Row] = read_table(path, "scores").to_pylist()
            return kept
        rows = score()
        write_table(table_from_rows(rows, "scores"), path, "scores")
        return rows

    def drop(self, batches: Iterable[int]) -> None:
        """Have these batches scored again by the next run."""
        for batch in batches:
            self._path(batch).unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove all: the stage has its result."""
        if self._folder.exists():
            shutil.rmtree(self._folder)

    def _path(self, batch: int) -> Path:
        return self._folder / f"batch-{batch:06d}.parquet"
