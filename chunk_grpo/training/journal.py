"""A run's metrics as it goes on, one JSON line an iteration: what shows its curves before it has ended.

The file is written with and without trackers, and is for looking at. It holds clock times, so it lies outside of what
DVC compares. A run that goes on writes it anew from its checkpoint's metrics: no iteration stands twice, none is
missing, and what came after the checkpoint is gone. Reading it needs no torch.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TextIO

from chunk_grpo.artifacts import output_file
from chunk_grpo.artifacts.storage import storage_errors
from chunk_grpo.errors import DataError

FILE = "progress.jsonl"
FORMAT = "chunk_grpo.progress/1"


@dataclass(frozen=True)
class Heading:
    """Which run it is; the first line of its journal.

    Attributes:
        identity: Names the computation: code, settings and inputs.
        seed: Training seed of this run.
        seeds: Those of all runs of the variant, one after the other.
        iterations: Of a whole run.
        done: Iterations that were done when this process began.
    """

    identity: str
    seed: int
    seeds: tuple[int, ...]
    iterations: int
    done: int


@dataclass(frozen=True)
class Record:
    """What a journal holds.

    Attributes:
        heading: Its first line.
        started: When this process began; seconds since 1970, as are all times here.
        metrics: Iteration to metric to value; 0 is the base.
        times: When this process ended each of its iterations; those of earlier processes are not known.
        ended: When training ended by itself; None while it goes on, and for a process that was stopped.
    """

    heading: Heading
    started: float
    metrics: Mapping[int, Mapping[str, float]]
    times: Mapping[int, float]
    ended: float | None


class Journal:
    """Writes the journal of one run."""

    def __init__(
        self, folder: Path, heading: Heading, rows: Iterable[tuple[int, str, float]], *, writes: bool = True
    ) -> None:
        """Begin the file, or begin it anew.

        Args:
            folder: Where it is put; made when it is missing.
            heading: Which run it is.
            rows: Metrics (iteration, metric, value) of the checkpoint that the run goes on from.
            writes: Whether this process is the one that writes; otherwise nothing is touched.

        Raises:
            DataError: The folder cannot be written.
        """
        self._path = folder / FILE
        self._stream: TextIO | None = None
        if not writes:
            return
        first = {"format": FORMAT, **asdict(heading), "at": time.time()}
        found: dict[int, dict[str, float]] = {}
        for iteration, metric, value in rows:
            found.setdefault(iteration, {})[metric] = value
        lines = [_line(first), *(_line({"iteration": i, "metrics": _finite(m)}) for i, m in found.items())]
        with output_file(self._path) as draft:
            draft.write_text("".join(lines), encoding="utf-8")
        with storage_errors("write", self._path):
            self._stream = self._path.open("a", encoding="utf-8")

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Add metrics; they are in the file when this returns.

        Raises:
            DataError: The disk is full or cannot be written.
        """
        self._add({"iteration": iteration, "metrics": _finite(metrics), "at": time.time()})

    def end(self) -> None:
        """Note that training has come to its end; errors as `log`."""
        self._add({"ended": True, "at": time.time()})

    def close(self) -> None:
        """Further calls write nothing."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _add(self, entry: Mapping[str, Any]) -> None:
        if self._stream is not None:
            with storage_errors("write", self._path):
                self._stream.write(_line(entry))
                self._stream.flush()


def read_journal(path: Path) -> Record | None:
    """What a journal holds so far, up to the first line that is not whole; None when there is no file.

    Raises:
        DataError: It is a file of another kind or version, or cannot be read.
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
    values = {field.name: first[field.name] for field in fields(Heading)}
    heading = Heading(**{**values, "seeds": tuple(first["seeds"])})
    metrics: dict[int, dict[str, float]] = {}
    times: dict[int, float] = {}
    ended = None
    for entry in entries:
        if "ended" in entry:
            ended = entry["at"]
            continue
        known = {name: value for name, value in entry["metrics"].items() if value is not None}
        metrics.setdefault(entry["iteration"], {}).update(known)
        # The first line of an iteration is that of its end; held-out images come later.
        if "at" in entry and entry["iteration"] > heading.done:
            times.setdefault(entry["iteration"], entry["at"])
    return Record(heading, first["at"], metrics, times, ended)


def _entries(content: bytes) -> Iterator[dict[str, Any]]:
    """The lines of a journal; one that is being written, or was when its process died, ends them."""
    *lines, _ = content.split(b"\n")
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:  # after a loss of power a line may be anything
            return
        if not isinstance(entry, dict):
            return
        yield entry


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, allow_nan=False) + "\n"


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has neither NaN nor infinity."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
