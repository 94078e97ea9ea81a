"""Run a command, and exit after the last process that it leaves: entry point of the images in which stages run.

    python -m infra.linger COMMAND ...

Prefect kills a flow run 30 s after SIGTERM, regardless of settings, and some of its commands exit at once. A container
ends with its command: without this module a training would be killed while it saves a checkpoint. The exit status is
the command's.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

import psutil

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
    signalled, deadline = set[psutil.Process](), time.monotonic() + limit
    while (left := set(psutil.Process().children())) and time.monotonic() < deadline:  # with adopted ones
        for child in left - signalled:
            child.terminate()
        signalled |= left
        psutil.wait_procs(left, _POLL_SECONDS)  # collects those that have ended, too
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
