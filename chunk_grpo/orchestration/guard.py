"""Run a command of which no process outlives the one that asked for it, however that one ends.

`python guard.py PARENT SECONDS COMMAND ...` runs the command in a session of its own and ends with its exit code,
or with 128 plus the number of the signal that ended it. On SIGTERM, and on Linux also when PARENT is gone (killed, or
crashed), the whole process group gets SIGTERM and, after SECONDS, SIGKILL. What the command leaves running is ended
in the same way.

`python guard.py PARENT become COMMAND ...` becomes the command, which alone gets SIGTERM when PARENT is gone.

It is started by its path and knows the standard library alone, so that it costs a few milliseconds.
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
_WEIGHT = "/proc/self/autogroup"  # proc(5): of the whole session, on the scale of nice
_WEIGHT_ATTEMPTS = 20


def guarded(command: Sequence[str], seconds: float) -> list[str]:
    """The command line that runs `command` for this process.

    Args:
        command: Program and arguments.
        seconds: From SIGTERM to SIGKILL.

    The kernel takes the end of the thread that starts it for the end of the process: that thread has to wait for it.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(seconds), *command]


def tied(command: Sequence[str]) -> list[str]:
    """The command line that becomes `command`, with its process id, and gets SIGTERM when this process ends.

    Args:
        command: Program, by its path or found on PATH, and arguments.

    As with `guarded`, the thread that starts it has to live as long.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), _BECOME, *command]


def end_with(parent: int) -> None:
    """From now on get SIGTERM when the parent process ends, however it ends, or at once if it has.

    Args:
        parent: Its process id, as it was told by it.

    The kernel forgets it when the calling thread ends.
    """
    _tell_kernel(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def adopt_orphans() -> None:
    """From now on be the parent of all descendants whose own parent ends."""
    _tell_kernel(_PR_SET_CHILD_SUBREAPER, 1)


def weigh_session() -> None:
    """Give the whole session of this process the weight in its own niceness.

    Linux mostly shares cores out among sessions first, and looks at niceness only within each (sched(7), autogroup). A
    process of low priority would otherwise get as much of them as any other by beginning a session.
    """
    niceness = os.nice(0)
    if niceness <= 0:
        return
    for _ in range(_WEIGHT_ATTEMPTS):
        try:
            weight = os.open(_WEIGHT, os.O_WRONLY)
            try:
                os.write(weight, str(niceness).encode())
            finally:
                os.close(weight)
            return
        except BlockingIOError:
            time.sleep(0.1)  # the kernel accepts ten changes a second of all users together
        except OSError:
            return  # it cannot be said here, and it is about speed alone


def main(arguments: Sequence[str]) -> int:
    """Run the command of the command line, or become it; its exit code."""
    parent, command = int(arguments[0]), arguments[2:]
    if arguments[1] == _BECOME:
        end_with(parent)
        os.execvp(command[0], list(command))
    seconds = float(arguments[1])
    _tell_kernel(_PR_SET_PDEATHSIG, signal.SIGTERM)
    adopt_orphans()  # this process can then tell those of the group that have ended from others
    if os.getppid() != parent:
        return 128 + signal.SIGTERM  # it ended before the kernel was told
    group = _Group(command, seconds)
    signal.signal(signal.SIGTERM, group.stop)
    return group.wait()


class _Group:
    """The command, and whatever it starts in its process group."""

    def __init__(self, command: Sequence[str], seconds: float) -> None:
        # preexec_fn is safe: there is one thread. Were this process killed, the command would get SIGTERM.
        self._leader = subprocess.Popen(
            command,
            start_new_session=True,
            preexec_fn=_lead,
        )
        self._killer = threading.Timer(seconds, self._signal, (signal.SIGKILL,))
        self._killer.daemon = True
        self._is_stopped = False

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """End the group, and be patient."""
        del number, frame
        self._signal(signal.SIGTERM)  # again too: a stage notes that nobody reads its lines any more
        if not self._is_stopped:
            self._is_stopped = True
            self._killer.start()

    def wait(self) -> int:
        """Wait until the whole group has ended; the exit code of the command."""
        code = self._leader.wait()
        if self._signal(0):
            self.stop()
        while self._signal(0):
            _reap()
            time.sleep(_POLL_SECONDS)
        return 128 - code if code < 0 else code

    def _signal(self, number: int) -> bool:
        """Send a signal (0: none); whether there is anybody in the group."""
        try:
            os.killpg(self._leader.pid, number)
        except (ProcessLookupError, PermissionError):  # macOS refuses to signal a group of ended processes
            return False
        return True


def _lead() -> None:
    """In the process that becomes the command, the leader of its session."""
    _tell_kernel(_PR_SET_PDEATHSIG, signal.SIGTERM)
    weigh_session()


def _reap() -> None:
    """Take note of orphans that have ended."""
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
