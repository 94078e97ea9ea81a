"""Run a command, and exit after the last process that it leaves: entry point of the images in which stages run.

    python -m infra.linger COMMAND ...

Prefect kills a flow run 30 s after SIGTERM, regardless of settings, and some of its commands exit at once. A container
ends with its command: without this module a training would be killed while it saves a checkpoint. The exit status is
the command's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from chunk_grpo.guard import adopt_orphans
from chunk_grpo.stopping import stop_seconds

MARGIN = 20.0
"""Seconds added to a stage's stop timeout; its guard adds 10 s. The container's stop timeout must be longer still."""

_POLL_SECONDS = 0.1


def run(command: Sequence[str]) -> int:
    """Run the command, send SIGTERM to the processes that it leaves, and wait for them; its exit status."""
    limit = stop_seconds() + MARGIN
    adopt_orphans()
    process = subprocess.Popen(command)

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    code = process.wait()
    signalled, deadline = set[int](), time.monotonic() + limit
    while (left := set(_children())) and time.monotonic() < deadline:
        for child in left - signalled:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        signalled |= left
        time.sleep(_POLL_SECONDS)
    return 128 - code if code < 0 else code


def _children() -> Iterator[int]:
    """Ids of the live children of this process, including adopted ones."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    for listed in Path("/proc/self/task").glob("*/children"):
        yield from map(int, listed.read_text().split())


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
