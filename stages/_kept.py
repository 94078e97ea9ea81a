"""Resume state of a stopped stage. It is outside DVC's outs, which DVC deletes before each run."""

import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts import Location, input_file, read_table, table_from_rows, write_table
from chunk_grpo.artifacts.unrecorded import Results

Row = dict[str, Any]


def add_files(digest: "hashlib._Hash", locations: Iterable[Location]) -> None:
    """Add the content of each file to a digest."""
    for location in locations:
        content = hashlib.sha256()
        with input_file(location) as path, path.open("rb") as stream:
            while block := stream.read(2**24):
                content.update(block)
        digest.update(content.digest())


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
