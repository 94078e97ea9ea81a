"""Run a command; kill its process group when the parent exits for any reason.

`python guard.py PARENT SECONDS COMMAND ...` runs the command in its own session and exits with the command's exit
code, or with 128 plus the number of the signal that ended it. On SIGTERM, and on Linux also when PARENT has ended
(killed, or crashed), the whole process group gets SIGTERM and, after SECONDS, SIGKILL. Processes that the command
leaves running are ended in the same way.

`python guard.py PARENT become COMMAND ...` becomes the command; only that process gets SIGTERM when PARENT ends.

It is started by its path and imports only the standard library, so that it costs a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.02
_BECOME = "become"


def supervised(command: Sequence[str], seconds: float) -> list[str]:
    """The command line that runs `command` supervised by this process, with `seconds` from SIGTERM to SIGKILL.

    For the kernel the parent is the thread that starts the command: that thread must wait for the command.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(seconds), *command]


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
    _tell_kernel(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parent ends (child subreaper)."""
    _tell_kernel(_PR_SET_CHILD_SUBREAPER, 1)


def main(arguments: Sequence[str]) -> int:
    """Run the command of the command line, or become it; return its exit code."""
    parent, command = int(arguments[0]), arguments[2:]
    if arguments[1] == _BECOME:
        die_with_parent(parent)
        os.execvp(command[0], list(command))
    seconds = float(arguments[1])
    _tell_kernel(_PR_SET_PDEATHSIG, signal.SIGTERM)
    adopt_orphans()  # so that `_reap` removes ended group members, which would otherwise still count as alive
    if os.getppid() != parent:
        return 128 + signal.SIGTERM  # it ended before prctl took effect
    group = _Group(command, seconds)
    signal.signal(signal.SIGTERM, group.stop)
    return group.wait()


class _Group:
    """The command and all processes of its process group."""

    def __init__(self, command: Sequence[str], seconds: float) -> None:
        # preexec_fn is safe: there is one thread. If this process is killed, the command gets SIGTERM.
        self._leader = subprocess.Popen(
            command,
            start_new_session=True,
            preexec_fn=_lead,
        )
        self._killer = threading.Timer(seconds, self._signal, (signal.SIGKILL,))
        self._killer.daemon = True
        self._is_stopped = False

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Send SIGTERM and start the SIGKILL timer."""
        del number, frame
        self._signal(signal.SIGTERM)  # on every call: a stage then mutes outputs whose reader is gone
        if not self._is_stopped:
            self._is_stopped = True
            self._killer.start()

    def wait(self) -> int:
        """Wait until the whole group has ended; return the exit code of the command."""
        code = self._leader.wait()
        if self._signal(0):
            self.stop()
        while self._signal(0):
            _reap()
            time.sleep(_POLL_SECONDS)
        return 128 - code if code < 0 else code

    def _signal(self, number: int) -> bool:
        """Send a signal (0: none); return whether the group has a process."""
        try:
            os.killpg(self._leader.pid, number)
        except (ProcessLookupError, PermissionError):  # macOS refuses to signal a group of ended processes
            return False
        return True


def _lead() -> None:
    """Set up the child process that becomes the command; it leads its session."""
    _tell_kernel(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _reap() -> None:
    """Collect the exit status of orphans that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _tell_kernel(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
