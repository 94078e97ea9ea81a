"""End with the parent process, and with all processes that a command has started.

`python guard.py PARENT SECONDS SCRIPT ...` runs a Python script in this process. When it has ended, the processes that
it leaves in its group get SIGTERM and, after SECONDS, SIGKILL. It passes on a SIGTERM, which on Linux also comes when
PARENT has been killed or has crashed. The script then notes how they end; after SECONDS everything is killed. If it has
started none, SIGTERM ends the script.

`python guard.py PARENT become COMMAND ...` becomes the command; only that process gets SIGTERM when PARENT ends.

It is started by its path and imports nothing of this package, of which the script's folder may have another version.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.02
_BECOME = "become"


def supervised(script: Sequence[str], seconds: float) -> list[str]:
    """The command line that runs a Python script and ends all that it starts, with `seconds` from SIGTERM to SIGKILL.

    For the kernel the parent is the thread that starts the command: that thread must wait for the command.
    """
    return [sys.executable, "-P", __file__, str(os.getpid()), str(seconds), *script]


def exec_with_parent_death_signal(command: Sequence[str]) -> list[str]:
    """The command line that becomes `command` (same process id) and gets SIGTERM when this process ends.

    The program is a path, or a name on PATH. As with `supervised`, the thread that starts the command must live as long
    as the command.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), _BECOME, *command]


def die_with_parent(parent: int) -> None:
    """Make this process get SIGTERM when the parent process ends for any reason, or at once if it has ended.

    `parent` is its process id, as the parent passed it. The effect ends with the calling thread.
    """
    ask_for_signal_at_parents_end()
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def ask_for_signal_at_parents_end() -> None:
    """On Linux, ask the kernel for SIGTERM when the parent process ends for any reason."""
    _tell_kernel(_PR_SET_PDEATHSIG, signal.SIGTERM)


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parent ends (child subreaper)."""
    _tell_kernel(_PR_SET_CHILD_SUBREAPER, 1)


def main(arguments: Sequence[str]) -> None:
    """Run the script of the command line, which exits, or become the command."""
    parent, command = int(arguments[0]), list(arguments[2:])
    die_with_parent(parent)
    if arguments[1] == _BECOME:
        os.execvp(command[0], command)
    adopt_orphans()  # so that no process of the group gets a parent outside of it
    _others()  # imports psutil now: a signal might interrupt its import
    others = _Others(float(arguments[1]))
    signal.signal(signal.SIGTERM, others.stop)
    sys.argv = command
    try:
        runpy.run_path(command[0], run_name="__main__")
    finally:
        others.end()


class _Others:
    """The processes of this process's group that it has started, or adopted."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._killer = threading.Timer(seconds, self._kill)
        self._killer.daemon = True
        self._ends = False

    def stop(self, number: int, frame: FrameType | None) -> None:
        """On SIGTERM: pass it on and start the SIGKILL timer; without other processes end this one."""
        del frame
        others = _others()
        if not others:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        _send(others, number)  # on every call: a stage then mutes outputs whose reader is gone
        if not self._ends:
            self._ends = True  # before the start, which another signal may interrupt
            self._killer.start()

    def end(self) -> None:
        """End the others, and wait for them."""
        import psutil  # here: not for a command that only becomes another one

        kill_at = time.monotonic() + self._seconds
        _send(_others(), signal.SIGTERM)
        while others := _others():
            if time.monotonic() > kill_at:
                _send(others, signal.SIGKILL)
            psutil.wait_procs(others, _POLL_SECONDS)  # also collects orphans

    def _kill(self) -> None:
        _send(_others(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def _others() -> list[psutil.Process]:
    import psutil

    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == os.getpgrp():
                found.append(process)
    return found


def _send(processes: Sequence[psutil.Process], number: int) -> None:
    import psutil

    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _tell_kernel(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


if __name__ == "__main__":
    main(sys.argv[1:])
