"""Metrics of a training in progress, as JSON lines. The live report draws its curves from them.

The file is written with and without trackers. It contains timestamps and is therefore not a DVC output. A resumed run
rewrites it from the metrics in its checkpoint: each iteration appears once, and lines after the checkpoint are dropped.
Reading it does not import torch.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts import output_file
from chunk_grpo.artifacts.storage import storage_errors
from chunk_grpo.errors import DataError

FILE = "progress.jsonl"
FORMAT = "chunk_grpo.progress/2"


@dataclass(frozen=True)
class Heading:
    """First line of a journal: identifies the run."""

    identity: str
    """Name of the computation: code, settings and inputs."""
    seed: int
    """Training seed of this run."""
    iterations: int
    """Number of iterations of a whole run."""
    done: int
    """Number of iterations that were complete when this process started."""


@dataclass(frozen=True)
class Record:
    """Content of a journal. All times are in seconds since 1970."""

    heading: Heading
    """First line."""
    started: float
    """Start time of the process."""
    metrics: Mapping[int, Mapping[str, float]]
    """Values by iteration and metric; iteration 0 is the base model."""
    times: Mapping[int, float]
    """End time of each iteration of this process. Iterations of earlier processes are missing."""
    ended: float | None
    """Time at which training finished; None while it runs, and for a stopped process."""


class Journal:
    """Writes the journal of one run."""

    def __init__(self, folder: Path, heading: Heading, rows: Iterable[tuple[int, str, float]]) -> None:
        """Write a new file, replacing an older one.

        Args:
            folder: Folder of the file; created if missing.
            heading: First line.
            rows: Metrics (iteration, metric, value) of the checkpoint from which the run resumes.

        Raises:
            DataError: The folder cannot be written.
        """
        self._path = folder / FILE
        first = {"format": FORMAT, **asdict(heading), "at": time.time()}
        found: dict[int, dict[str, float]] = {}
        for iteration, metric, value in rows:
            found.setdefault(iteration, {})[metric] = value
        lines = [_line(first), *(_line({"iteration": i, "metrics": _finite(m)}) for i, m in found.items())]
        with output_file(self._path) as draft:
            draft.write_text("".join(lines), encoding="utf-8")
        with storage_errors("write", self._path):
            self._stream = self._path.open("a", encoding="utf-8")

    def log(self, iteration: int, metrics: Mapping[str, float], images: object = None) -> None:
        """Append metrics and flush the file. Values that are not finite become null; images are left out.

        Raises:
            DataError: The disk is full or cannot be written.
        """
        del images
        self._add({"iteration": iteration, "metrics": _finite(metrics), "at": time.time()})

    def close(self, *, is_finished: bool) -> None:
        """Append the end of training if it finished, and close the file. Raises like `log`."""
        if is_finished:
            self._add({"ended": True, "at": time.time()})
        with storage_errors("write", self._path):
            self._stream.close()

    def _add(self, entry: Mapping[str, Any]) -> None:
        with storage_errors("write", self._path):
            self._stream.write(_line(entry))
            self._stream.flush()


def read_journal(path: Path) -> Record | None:
    """Read a journal up to the first incomplete line; None if there is no file.

    Raises:
        DataError: The file has another format, or cannot be read.
    """
    with storage_errors("read", path):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
    entries = _entries(content)
    first = next(entries, None)
    if first is None or first.get("format") != FORMAT:
        raise DataError(f"{path}: must be a journal of the format {FORMAT}. Delete it, or train again.")
    heading = Heading(**{field.name: first[field.name] for field in fields(Heading)})
    metrics: dict[int, dict[str, float]] = {}
    times: dict[int, float] = {}
    ended = None
    for entry in entries:
        if "ended" in entry:
            ended = entry["at"]
            continue
        known = {name: value for name, value in entry["metrics"].items() if value is not None}
        metrics.setdefault(entry["iteration"], {}).update(known)
        # The first line of an iteration is written at its end; held-out metrics follow in a second line.
        if "at" in entry and entry["iteration"] > heading.done:
            times.setdefault(entry["iteration"], entry["at"])
    return Record(heading, first["at"], metrics, times, ended)


def _entries(content: bytes) -> Iterator[dict[str, Any]]:
    """Parsed lines of a journal, up to the first incomplete one (being written, or cut off by a crash)."""
    *lines, _ = content.split(b"\n")
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:  # after a loss of power a line may hold any bytes
            return
        if not isinstance(entry, dict):
            return
        yield entry


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, allow_nan=False) + "\n"


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Replace NaN and infinity, which JSON lacks, by None."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
