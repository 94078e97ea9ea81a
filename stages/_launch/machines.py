"""Machines that share a stage: each keeps a note in a folder on a disk that all see, and reads the others'.

Machine 0 runs the stage and writes a job into its note. Each other machine runs `python -m stages.follow`, which
answers and starts its part of the stage's processes. A note has a number that grows, so that silence is noticed. It is
written in place: who opens a file on a network's disk sees what is in it, while a new name may take a minute to appear.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from chunk_grpo import environment
from chunk_grpo.errors import ConfigError, DataError, TransientError
from stages._launch.elastic import Job, Machines, Outcome, Stop, kill_processes

JOIN_SECONDS = 600.0
"""Seconds that a stage waits for the other machines."""

LOST_SECONDS = 30.0
"""Seconds of silence after which a machine counts as lost."""

END_SECONDS = 5.0
"""Seconds that the processes of the other machines have to end when one is lost."""

FAIL_SECONDS = 30.0
"""Seconds that they have when one has failed; torch gives as many to the processes of one machine."""

_BEAT_SECONDS = 0.5


def machines_of_environment() -> Machines:
    """This machine's place; one machine if the variables are not set."""
    count = environment.whole_number(environment.MACHINES, 1)
    if count == 1:
        return Machines()
    index = environment.whole_number(environment.MACHINE, None, 0)
    if index is None or index >= count:
        raise ConfigError(f"{environment.MACHINE}: must be below {environment.MACHINES} = {count}, got {index}")
    address, folder = (os.environ.get(each) for each in (environment.MASTER_ADDRESS, environment.NOTES))
    if not address and index == 0:
        raise ConfigError(
            f"{environment.MASTER_ADDRESS}: must be the host name of machine 0, because {environment.MACHINES} is "
            f"{count}, got nothing"
        )
    if not folder:
        raise ConfigError(
            f"{environment.NOTES}: must be a folder on a disk that all machines see, because {environment.MACHINES} is "
            f"{count}, got nothing; the checkout and the DVC cache must be on such a disk, too"
        )
    return Machines(count, index, address or "", Path(folder).absolute())


def _note(place: Machines, index: int) -> Path:
    return place.folder / f"machine-{index}.json"


class Other:
    """What is known of another machine."""

    def __init__(self, place: Machines, index: int) -> None:
        """Know nothing yet."""
        self.who, self._path = f"machine {index} of {place.count}", _note(place, index)
        self.note: dict[str, Any] = {}
        self._heard_at, self._beats = time.monotonic(), 0

    def read(self) -> None:
        """Read its note; one that is missing, or is being written, says nothing new."""
        with suppress(OSError, ValueError):
            note = json.loads(self._path.read_text(encoding="utf-8"))
            if note != self.note:
                self.note, self._heard_at, self._beats = note, time.monotonic(), self._beats + 1

    @property
    def lives(self) -> bool:
        """Whether the note has changed since it was first read, and lately."""
        return self._beats > 1 and not self.is_lost

    @property
    def is_lost(self) -> bool:
        """Whether the machine has been silent for too long."""
        return time.monotonic() - self._heard_at > LOST_SECONDS

    def outcome(self, job: str) -> Outcome | None:
        """How its processes of a job ended; None: they run."""
        name, *values = self.note.get("ended", [""])
        if name == job:
            code, account = values
            return Outcome(code, "".join(f"{self.who}: {line}\n" for line in account.splitlines()))
        if not self.is_lost:
            return None
        return Outcome(
            TransientError.exit_code,
            f"{self.who} is lost: it has been silent for {LOST_SECONDS:.0f} s. Start it again, then run the same "
            "command; a training resumes from its newest checkpoint.\n",
            is_lost=True,
        )


class Board:
    """The exchange of notes, in a thread.

    Attributes:
        others: The machines that this one listens to: all others on machine 0, and machine 0 on the others.
        is_asked: Whether the stop of this job came from another machine.
    """

    def __init__(self, place: Machines, seconds: float) -> None:
        """Begin this machine's note; `seconds` is the time of a stop."""
        self._place, self._seconds = place, seconds
        self.others = [Other(place, i) for i in (range(1, place.count) if place.index == 0 else [0])]
        self._note: dict[str, Any] = {"beat": 0}
        self._job, self.is_asked, self._kill_at, self._stop = "", False, float("inf"), Stop()
        self._lock, self._closed = threading.Lock(), threading.Event()
        try:
            place.folder.mkdir(parents=True, exist_ok=True)
            _note(place, place.index).write_text("{}", encoding="utf-8")
        except OSError as error:
            raise DataError(
                f"{environment.NOTES}: {place.folder}: cannot be written ({error.strerror}); it must be a folder on a "
                "disk that all machines see"
            ) from error
        self._thread = threading.Thread(target=self._run, name="machines", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left and end the thread."""
        self._closed.set()
        self._thread.join()

    def call(self, job: Job) -> None:
        """Offer a job to the other machines; return when all have accepted it.

        ConfigError if one refuses it; TransientError if one does not answer.
        """
        self._say(job=asdict(job))
        begun, is_announced = time.monotonic(), False
        while absent := [one for one in self.others if one.note.get("answer", [""])[0] != job.name]:
            waited, names = time.monotonic() - begun, ", ".join(one.who for one in absent)
            if waited > JOIN_SECONDS:
                raise TransientError(
                    f"no answer within {JOIN_SECONDS:.0f} s of {names}: start `python -m stages.follow` there, with "
                    f"{environment.NOTES}={self._place.folder}, which must be on a disk that all machines see"
                )
            if waited > 5 and not is_announced:
                is_announced = True
                sys.stderr.write(f"waiting for {names}, counted from 0\n")
            time.sleep(_BEAT_SECONDS)
        for one in self.others:
            if refusal := one.note["answer"][1]:
                raise ConfigError(f"{one.who}: {refusal}")

    def next_job(self, last: str) -> Job:
        """Wait for a job of machine 0 that is not the last one."""
        (first,) = self.others
        while True:
            found = first.note.get("job")
            if found and found["name"] != last and first.lives and first.outcome(found["name"]) is None:
                return Job(**found)
            time.sleep(_BEAT_SECONDS)

    def answer(self, job: Job, refusal: str) -> None:
        """Accept a job, or say why not."""
        self._say(answer=[job.name, refusal])

    def together(self, job: str, stop: Stop, run: Callable[[], Outcome]) -> Outcome:
        """Run this machine's part of a job, and end it with the others'; on machine 0, how all ended."""
        self._stop, self.is_asked, self._kill_at, self._job = stop, False, float("inf"), job
        own = run()
        self._say(ended=[job, own.code, own.account])
        while self._place.index == 0 and not all(one.outcome(job) for one in self.others):
            time.sleep(_BEAT_SECONDS)
        self._job = ""
        others = [outcome for one in self.others if (outcome := one.outcome(job)) is not None]
        if self._place.index > 0:
            others = [outcome for outcome in others if outcome.is_lost]
        failed = [outcome for outcome in [own, *others] if outcome.code]
        best = min(failed, key=Outcome.rank, default=own)
        if best.is_explained:
            return best
        return replace(best, account="".join(each.account for each in failed if each.code == best.code))

    def _say(self, **values: object) -> None:
        with self._lock:
            self._note |= values
            self._note["beat"] += 1
            with suppress(OSError):  # the others hear silence, as this machine does
                _note(self._place, self._place.index).write_text(json.dumps(self._note), encoding="utf-8")

    def _run(self) -> None:
        while not self._closed.wait(_BEAT_SECONDS):
            self._say()
            for one in self.others:
                one.read()
            if self._job:
                self._heed(self._job)

    def _heed(self, job: str) -> None:
        """Pass a stop on, and end this machine's processes some time after another machine's."""
        if self._stop.begun_at is not None and self._place.index == 0:
            self._note["stop"] = job
        for one in self.others:
            outcome = one.outcome(job)
            has_failed = outcome is not None and outcome.code > 0
            if (has_failed or one.note.get("stop") == job) and self._stop.is_heeded and not self.is_asked:
                self.is_asked = True
                os.kill(os.getpid(), signal.SIGTERM)
            if outcome is not None and (has_failed or self._place.index > 0):
                was_stopped = outcome.code == TransientError.exit_code
                patience = END_SECONDS if outcome.is_lost else self._seconds if was_stopped else FAIL_SECONDS
                self._kill_at = min(self._kill_at, time.monotonic() + patience)
        if time.monotonic() > self._kill_at:
            kill_processes()
