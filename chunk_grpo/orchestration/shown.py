"""`dvc repro` for a person: a line before each stage that runs, and DVC's own lines in a log.

`shown.py RECORD LOG DURATIONS`, which guard.py runs, runs the pipeline of the current folder. RECORD is as in
dvc_process.py. DURATIONS is a JSON file with the seconds of stages of an earlier run, by name.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

_SEEDED = ("train", "generate")
"""Groups whose stages are named VARIANT-SEED."""


class Shown:
    """Says on a screen which stage of how many begins, and how long the rest takes, where there is a ground for it.

    The ground is a stage of the same kind in this run, or the same stage in an earlier run with equal parameters.
    """

    def __init__(self, screen: TextIO, earlier: Mapping[str, float]) -> None:
        self._screen, self._earlier = screen, earlier
        self._needs: dict[str, Collection[str]] = {}
        self._ran: set[str] = set()
        self._took: dict[str, float] = {}

    def plan(self, needs: Mapping[str, Collection[str]]) -> None:
        """Take the stages in their order, each with the stages whose results change only with their inputs."""
        self._needs = dict(needs)

    def begin(self, name: str) -> None:
        """Say that a stage begins to run."""
        self._ran.add(name)
        place = f"stage {list(self._needs).index(name) + 1} of {len(self._needs)}"
        self._screen.write(f"{place}: {label(name)}{self._left(name)}\n")
        self._screen.flush()

    def end(self, name: str, seconds: float) -> None:
        """Note the seconds that a stage took to run."""
        self._took |= dict.fromkeys(_kinds(name), seconds)

    def _left(self, name: str) -> str:
        own, due = self._expected(name), list(self._due(name))
        if own is None:
            return ""
        known = [seconds for each in due if (seconds := self._expected(each)) is not None]
        if len(known) == len(due) and due[-1] == list(self._needs)[-1]:
            return f" (about {_rough(sum(known))} left)"
        return f" (about {_rough(own)})"

    def _due(self, name: str) -> Iterator[str]:
        """The stage, and later ones that need one that has run or is due; others may be up to date."""
        names, due = list(self._needs), self._ran.copy()
        for each in names[names.index(name) :]:
            if each == name or due & set(self._needs[each]):
                due.add(each)
                yield each

    def _expected(self, name: str) -> float | None:
        alike, kind = _kinds(name)
        for seconds in (self._took.get(alike), self._earlier.get(name), self._took.get(kind)):
            if seconds is not None:
                return seconds
        return None


def label(name: str) -> str:
    """A stage's name in words: `train chunk-ws seed 1` for train@chunk-ws-1."""
    group, _, item = name.partition("@")
    if group in _SEEDED:
        variant, _, seed = item.rpartition("-")
        return f"{group} {variant} seed {seed}"
    return f"{group} {item}".rstrip()


def _kinds(name: str) -> tuple[str, str]:
    """What stages that take about as long have in common: group and variant, then the group alone."""
    group = name.partition("@")[0]
    return (name.rpartition("-")[0] if group in _SEEDED else name), group


def _rough(seconds: float) -> str:
    if seconds < 55:
        return f"{max(10, round(seconds, -1)):.0f} s"
    if seconds < 90 * 60:
        return f"{max(1, round(seconds / 60))} min"
    return f"{seconds / 3600:.1f} h"


def main(record: str, log: str, durations: str) -> int:
    """Run `dvc repro`; return its exit code."""
    screen, earlier = sys.stdout, json.loads(Path(durations).read_text(encoding="utf-8"))
    own, errors = Path(log).open("w", encoding="utf-8", buffering=1), sys.stderr  # noqa: SIM115
    # Before DVC is imported, whose handlers keep these streams. Stages have the terminal, since they write to the
    # file descriptors.
    sys.stdout = sys.stderr = own
    try:
        process = runpy.run_path(str(Path(__file__).with_name("dvc_process.py")))
        return int(process["main"](record, ["repro"], Shown(screen, earlier)))
    finally:
        sys.stdout, sys.stderr = screen, errors
        with suppress(OSError):  # a full disk: the stage has said so
            own.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
