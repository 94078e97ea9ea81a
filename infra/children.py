"""Child processes with a log file each, started again when they end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from chunk_grpo.orchestration.guard import exec_with_parent_death_signal
from infra.setup import SetUpError

PAUSES = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Seconds before a child is started again: the first time, the second time, ... At the next end it is given up."""
FORGET_SECONDS = 600.0
"""Age at which the end of a child no longer counts."""


@dataclass
class Child:
    """A command that should be running."""

    name: str
    """Name of the child; its log is NAME.log."""
    command: Sequence[str]
    """The command."""
    environment: Mapping[str, str] = field(repr=False)  # may have a password
    """Its whole environment."""
    process: subprocess.Popen[bytes]
    """Its running or last process."""
    ends: list[float] = field(default_factory=list)
    """Times of its last ends, in seconds of the monotonic clock."""
    due: float | None = None
    """Time of the next start; None unless the process has ended."""


@dataclass
class Children:
    """Child processes, in the order of their first start."""

    folder: Path
    """Working directory of the children."""
    logs: Path
    """Folder of their log files."""
    _all: dict[str, Child] = field(default_factory=dict)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a child; one of that name must have ended.

        It gets its own process group, so that Ctrl-C reaches only this process. If this process is killed, the kernel
        ends the command; flow runs and stages end with their worker.
        """
        self._all[name] = Child(name, command, environment, self._process(name, command, environment))

    def processes(self, *, without: str | None = None) -> list[subprocess.Popen[bytes]]:
        """The processes of all children but the one named `without`, ended ones included."""
        return [child.process for name, child in self._all.items() if name != without]

    def process(self, name: str) -> psutil.Process:
        """The running or last process of a child."""
        return psutil.Process(self._all[name].process.pid)

    def is_running(self, name: str) -> bool:
        """Whether there is such a child, and its process has not ended."""
        return name in self._all and self._all[name].process.poll() is None

    def clear(self) -> None:
        """Forget all children, after they were stopped."""
        self._all.clear()

    def check(self) -> None:
        """Check that all are running; SetUpError names one that has ended, its exit status and its log file."""
        for child in self._all.values():
            if child.process.poll() is not None:
                raise SetUpError(
                    f"{child.name} ended with {child.process.returncode}; see {self._log(child.name)}"
                )

    def start_again(self, say: Callable[[str], None]) -> None:
        """Start the children again that have ended, each after its pause, and `say` so. Call it every second.

        SetUpError if one has ended more often within `FORGET_SECONDS` than there are `PAUSES`.
        """
        now = time.monotonic()
        for child in self._all.values():
            if child.process.poll() is None:
                continue
            if child.due is None:
                child.due = now + self._pause(child, now, say)
            if now >= child.due:
                child.process = self._process(child.name, child.command, child.environment)
                child.due = None

    def _pause(self, child: Child, now: float, say: Callable[[str], None]) -> float:
        child.ends = [end for end in child.ends if now - end < FORGET_SECONDS] + [now]
        code, log, times = child.process.returncode, self._log(child.name), len(child.ends)
        if times > len(PAUSES):
            raise SetUpError(
                f"{child.name} ended {times} times within {FORGET_SECONDS / 60:.0f} minutes, now with {code}; see {log}"
            )
        pause = PAUSES[times - 1]
        say(f"{child.name} ended with {code} and is started again in {pause:.0f} s; see {log}")
        return pause

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def _process(
        self, name: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with self._log(name).open("ab") as log:
            return subprocess.Popen(
                exec_with_parent_death_signal(command),
                cwd=self.folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
