"""Stalled trainings: no new line in the journal for many times the longest time between two lines.

A stopped process, a hung GPU or a hung call of NCCL stops a training in this way. Its flow run still sends heartbeats.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.environment import END_STALLED
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.orchestration.attempts import TRY_AGAIN
from chunk_grpo.orchestration.commands import Commands, Log
from chunk_grpo.orchestration.outcomes import StageFailed
from chunk_grpo.orchestration.repeating import repeating
from chunk_grpo.progress import duration
from chunk_grpo.training.journal import FILE, Record, read_journal

_LOOK_SECONDS = 5.0
_WARN_AFTER = 10.0  # times the longest time between two lines


def end_after() -> float | None:
    """Silence that ends a training, at least 1, in units of its longest time between two lines; None: never."""
    text = os.environ.get(END_STALLED)
    if not text:
        return None
    try:
        times = float(text)
    except ValueError:
        times = math.nan
    if not 1 <= times < math.inf:
        raise ConfigError(f"{END_STALLED}: must be a number of at least 1, got {text!r}")
    return times


@dataclass
class Silence:
    """Time since the last line of a journal, and the longest time between two lines, both in seconds.

    They are measured by this process, and an interval between two looks counts for twice the usual one at most: sleep
    of the machine and a jump of its clock are no silence.
    """

    before: float | None = None
    """Start of the training in the journal of an earlier attempt, which does not count."""
    seconds: float = 0.0
    """Time since the last line."""
    longest: float = 0.0
    """Longest time between two lines, or between the start of the journal and its next line."""
    _last: Record | None = field(default=None, repr=False)

    def look(self, record: Record | None, elapsed: float) -> None:
        """Note the journal as it is, `elapsed` seconds after the last look."""
        if record is None or record.started == self.before:
            return
        is_first, seconds = self._last is None, self.seconds + min(elapsed, 2 * _LOOK_SECONDS)
        if record == self._last:
            self.seconds = seconds
            return
        self.longest = self.longest if is_first else max(self.longest, seconds)
        self.seconds, self._last = 0.0, record

    def exceeds(self, times: float) -> bool:
        """Whether it lasts longer than `times` the longest time between two lines.

        False before the first iteration has ended, since loading takes its own time, and after the last.
        """
        known = self._last is not None and bool(self._last.times) and self._last.ended is None
        return known and self.seconds > times * self.longest


@contextmanager
def watched(stage: str, root: Path, commands: Commands, warn: Log) -> Iterator[None]:
    """Warn of a stall of the training that this thread runs, and end it if the environment says so.

    Only trainings, `train@VARIANT-SEED`, are watched. StageFailed of an ended one has the exit code `TRY_AGAIN`, since
    its checkpoint makes a restart cheap.
    """
    kind, _, item = stage.partition("@")
    variant, _, seed = item.rpartition("-")
    if kind != "train":
        yield
        return
    journal = Path(Layout.below(root).journal_folder(variant, seed), FILE)
    watch = _Watch(stage, journal, commands, warn, end_after(), threading.get_ident())
    try:
        with repeating(watch.look, _LOOK_SECONDS):
            yield
    except StageFailed as error:
        if watch.is_ended:
            raise StageFailed(stage, TRY_AGAIN, [watch.text]) from error
        raise


class _Watch:
    """A look at a journal every few seconds."""

    def __init__(
        self, stage: str, journal: Path, commands: Commands, warn: Log, end: float | None, thread: int
    ) -> None:
        self._stage, self._journal, self._commands, self._warn = stage, journal, commands, warn
        self._end, self._thread = end, thread
        self._warn_after = _WARN_AFTER if end is None else min(end, _WARN_AFTER)
        self._changed: tuple[int, int] | None = None
        earlier = self._read(None)
        self._record, self._silence = earlier, Silence(None if earlier is None else earlier.started)
        self._time = time.monotonic()
        self.text = ""
        self.is_ended = False

    def look(self) -> None:
        now = time.monotonic()
        self._record = self._read(self._record)
        self._silence.look(self._record, now - self._time)
        self._time = now
        if self.text and not self._silence.seconds:
            self._warn(f"{self._stage} continues.")
            self.text = ""
        if not self.text and self._silence.exceeds(self._warn_after):
            silent, longest = duration(self._silence.seconds), duration(self._silence.longest)
            self.text = (
                f"{self._stage} stalls: no new iteration for {silent}, {longest} at most before. "
                "A process of it is stopped, or its GPU or network hangs."
            )
            self._warn(self.text)
        if self._end is not None and not self.is_ended and self._silence.exceeds(self._end):
            self.is_ended = True
            self._warn(f"{self._stage} is ended, as {END_STALLED} says.")
            self._commands.end(self._thread)

    def _read(self, known: Record | None) -> Record | None:
        """Read the journal if its file has changed since the last time; otherwise it is as known."""
        try:
            found = self._journal.stat()
        except FileNotFoundError:
            return known
        if (found.st_mtime_ns, found.st_size) == self._changed:
            return known
        self._changed = found.st_mtime_ns, found.st_size
        try:
            return read_journal(self._journal)
        except DataError as error:
            self._warn(str(error))
            return known
