"""Run a command, and end after the last process that it leaves: the entry point of the images in which stages run.

    python -m infra.linger COMMAND ...

Prefect ends a flow run 30 s after it asked it to, whatever it is set to, and some of its commands end at once. A
container lives as long as its command: without this, the training that saves a checkpoint would be killed with it.
The exit status is that of the command.
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

from chunk_grpo.orchestration.guard import adopt_orphans
from chunk_grpo.stopping import stop_seconds

MARGIN = 20.0
"""Seconds beyond those of a stage, as its guard has 10 more. The container's own time has to be longer still."""

_POLL_SECONDS = 0.1


def run(command: Sequence[str]) -> int:
    """Run the command, ask what it leaves to end, and wait for that; the exit status of the command."""
    limit = stop_seconds() + MARGIN
    adopt_orphans()
    process = subprocess.Popen(command)

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    code = process.wait()
    asked, deadline = set[int](), time.monotonic() + limit
    while (left := set(_children())) and time.monotonic() < deadline:
        for child in left - asked:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        asked |= left
        time.sleep(_POLL_SECONDS)
    return 128 - code if code < 0 else code


def _children() -> Iterator[int]:
    """Ids of the live children of this process, those that it adopted among them."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    for listed in Path("/proc/self/task").glob("*/children"):
        yield from map(int, listed.read_text().split())


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
