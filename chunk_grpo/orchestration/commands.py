"""Run commands line by line; end all of them at once, and never leave a part behind."""

from __future__ import annotations

import io
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from chunk_grpo.orchestration.guard import guarded
from chunk_grpo.stopping import stop_seconds

Log = Callable[[str], None]

STOP_MARGIN = 10.0
"""Seconds beyond those of the stage, so that a stage that takes too long can say so itself."""

_PROGRESS_SECONDS = 10.0  # a progress bar redraws itself many times a second: a log needs it once in a while


class CommandStoppedError(Exception):
    """All commands were asked to end; this one was not run, or not to its end."""


class Commands:
    """Commands that run side by side, each in a thread that waits for it, and end together.

    Attributes:
        stopping: set when they are to end.
    """

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def run(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], on_line: Log) -> int:
        """Run a command to its end, with each line of its stdout and stderr handed over as it appears.

        Any exception in here, such as the one of Prefect on SIGTERM, stops the command and is raised again.

        Args:
            command: Program and arguments.
            folder: Where it runs.
            environment: Its whole environment.
            on_line: Takes each line, without its end.

        Returns:
            The exit status; 128 plus the signal's number for a signal.

        Raises:
            CommandStoppedError: `stop` was called, before or while it ran.
        """
        with self._lock:
            if self.stopping.is_set():
                raise CommandStoppedError("stopped with all others")
            process = subprocess.Popen(
                guarded(command, stop_seconds() + STOP_MARGIN),
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # Prefect kills a flow run with its process group 30 s after asking it to end, whatever it is set to.
                start_new_session=True,
            )
            self._running.add(process)
        assert process.stdout is not None
        # newline="" keeps "\r", which tells the state of a progress bar from a line.
        with io.TextIOWrapper(process.stdout, encoding="utf-8", errors="replace", newline="") as output:
            try:
                for line in _lines(output):
                    on_line(line)
                code = process.wait()
            except BaseException:
                process.terminate()
                for line in _lines(output):
                    on_line(line)
                process.wait()
                raise
            finally:
                self._forget(process)
        if code != 0 and self.stopping.is_set():
            raise CommandStoppedError("stopped with all others")
        return code

    def stop(self) -> None:
        """Ask every command to end, and let none begin; the threads that wait for them get `CommandStoppedError`."""
        with self._lock:
            self.stopping.set()
            for process in self._running:
                process.terminate()

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)


def _lines(output: io.TextIOWrapper) -> Iterator[str]:
    """Lines without their ends, without empty ones, and with few of the states of a progress bar."""
    last_progress = float("-inf")
    for raw in output:
        if raw.endswith("\r"):
            if time.monotonic() - last_progress < _PROGRESS_SECONDS:
                continue
            last_progress = time.monotonic()
        if line := raw.rstrip():
            yield line
