"""Run a command in a process group of its own, line by line, and never leave a part of it behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

Log = Callable[[str], None]

STOP_SECONDS = 20.0
"""From SIGTERM to SIGKILL, to save a checkpoint; Prefect kills a flow run 30 s after asking it to end."""

_PROGRESS_SECONDS = 10.0  # a progress bar redraws itself many times a second: a log needs it once in a while


def run_logged(command: Sequence[str], folder: Path, environment: Mapping[str, str], on_line: Log) -> int:
    """Run a command to its end, with each line of its stdout and stderr handed over as it appears.

    Any exception in here, such as the one of Prefect on SIGTERM, stops the whole group and is raised again.

    Args:
        command: program and arguments.
        folder: where it runs.
        environment: its whole environment.
        on_line: takes each line, without its end.

    Returns:
        The exit status, negative for a signal.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    # newline="" keeps "\r", which tells the state of a progress bar from a line.
    with io.TextIOWrapper(process.stdout, encoding="utf-8", errors="replace", newline="") as output:
        try:
            for line in _lines(output):
                on_line(line)
            return process.wait()
        except BaseException:
            _stop_group(process, output, on_line)
            raise


def _stop_group(process: subprocess.Popen[bytes], output: io.TextIOWrapper, on_line: Log) -> None:
    """SIGTERM to the group, SIGKILL when it has not gone in time.

    The output ends when the last process that holds it has gone. That tells more than the end of the first
    process: DVC leaves at once, while a training stage is still saving its checkpoint.
    """
    _signal_group(process.pid, signal.SIGTERM)
    killer = threading.Timer(STOP_SECONDS, _signal_group, (process.pid, signal.SIGKILL))
    killer.start()
    try:
        for line in _lines(output):
            on_line(line)
    finally:
        killer.cancel()
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return  # all of them have ended, which is what was wanted (macOS refuses to signal a zombie)


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
