"""Progress display: a live bar on a terminal, periodic lines in a log; durations as text."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LOG_INTERVAL = 10.0
"""Seconds between two lines when the output is not a terminal."""


class Meter:
    """Shows finished units of `total`. Use as a context manager and call `advance` after each unit."""

    def __init__(self, label: str, total: int, done: int = 0, parts: int = 1) -> None:
        """Start at `done` of `total` units, shown under `label`; `advance` counts parts, `parts` of them a unit."""
        self._label, self._total, self._parts = label, total, parts
        self._done = self._first = done * parts
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._start = self._last_line = time.monotonic()

    def __enter__(self) -> Meter:
        if self._done:
            line = f"{self._label}: continues at {self._done // self._parts}/{self._total}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, TextColumn("eta"), TimeRemainingColumn(), console=self._console)
            self._bar.add_task(self._label, total=self._total, completed=self._done // self._parts)
            self._bar.start()
        return self

    def advance(self, count: int = 1, note: str = "") -> None:
        """Report `count` more finished parts; `note` is shown beside the count of units."""
        self._done += count
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], completed=self._done / self._parts, description=f"{self._label} {note}".rstrip()
            )
            return
        now, total = time.monotonic(), self._total * self._parts
        if now - self._last_line >= LOG_INTERVAL or self._done >= total:
            self._last_line = now
            left = (now - self._start) / max(self._done - self._first, 1) * (total - self._done)
            line = f"{self._label}: {self._done // self._parts}/{self._total} {note}".rstrip()
            self._console.print(f"{line}, {left:.0f} s left", markup=False, highlight=False, soft_wrap=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def duration(seconds: float) -> str:
    """Format seconds as 4.2 s, 3 min 05 s or 1 h 20 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
