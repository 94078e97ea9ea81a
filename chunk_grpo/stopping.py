"""How the processes of a stage end early: when a signal asks them to, and with the process that started them.

It knows the standard library alone: `begin` is in force some milliseconds after a process starts, long before torch is
imported.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Literal, NoReturn

from chunk_grpo import environment
from chunk_grpo.errors import ConfigError, Stopped

STOP_SECONDS = 600
"""Default of the time from the request to SIGKILL, for a training to save its checkpoint; other stages end at once."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a scheduler, and a terminal that closes."""

_STDERR = 2
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def stop_seconds() -> float:
    """From the request to SIGKILL.

    Raises:
        ConfigError: The environment has no such number.
    """
    value = os.environ.get(environment.STOP_SECONDS, str(STOP_SECONDS))
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(
            f"{environment.STOP_SECONDS}: must be a number of seconds, at least 1, got {value!r}"
        )
    return float(value)


class StopSignal:
    """A stop signal as a request: the end of the process, an exception, or a flag that long work looks at.

    The first signal counts. Later ones change nothing, but for a second Ctrl-C, which ends the process at once.

    Attributes:
        requested: Whether one has come.
    """

    def __init__(self) -> None:
        self.requested = False
        self._name = ""
        self._answer: Literal["exit", "raise", "wait"] = "exit"

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Inside, a stop signal raises `Stopped`; on leaving, what handled them before does so again."""
        before = self.listen()
        self._answer = "raise"
        try:
            yield
        finally:
            self._answer = "exit"
            for number, handler in before.items():
                if signal.getsignal(number) is not signal.SIG_DFL:  # otherwise Ctrl-C came
                    signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, a stop signal only sets `requested`; the work saves a checkpoint and returns when it can."""
        self._answer = "wait"
        try:
            yield
        finally:
            self._answer = "raise"
        if self.requested:
            self._leave()

    def listen(self) -> dict[signal.Signals, Any]:
        """Handle the stop signals, but for those that are ignored, as nohup has it; what handled them before."""
        return {
            number: signal.signal(number, self.handle)
            for number in STOP_SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        del frame
        mute_lost_outputs()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # for the second one
        if self.requested:
            return
        self.requested, self._name = True, signal.Signals(number).name
        # At its end Python looks through all objects once more, which takes seconds with torch loaded.
        atexit.register(gc.freeze)
        if self._answer == "raise":
            self._leave()
        if self._answer == "exit":
            with suppress(OSError):
                os.write(_STDERR, f"error: {self._message()}\n".encode())
            os._exit(Stopped.exit_code)

    def _leave(self) -> NoReturn:
        raise Stopped(self._message())

    def _message(self) -> str:
        return f"stopped by {self._name}. Run the same command again; a training goes on from its newest checkpoint."


STOP = StopSignal()
"""The process's stop request; training defers it."""


def begin() -> None:
    """The first act of a stage's process: it ends when a signal asks for that, or when its parent process ends."""
    STOP.listen()
    _tell_kernel_to_end_with_parent()
    if _parent_has_ended():
        os.kill(os.getpid(), signal.SIGTERM)


def mute_lost_outputs() -> None:
    """Have what nobody can read any more go nowhere: a line to a closed terminal or pipe would be an error."""
    for output in (1, _STDERR):
        poll = select.poll()
        poll.register(output, 0)
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, output)
            os.close(nowhere)


def _tell_kernel_to_end_with_parent() -> None:
    """On Linux, get SIGTERM when the process that started this one ends, however it ends."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")


def _parent_has_ended() -> bool:
    """Whether the process that started this one ended before the kernel was told.

    Its orphans may be adopted by any process above it, not by process 1 alone. The launcher of a stage's processes says
    who it is. DVC does not, but it starts a stage in its own process group, and who adopts the stage is in another one.
    """
    parent = os.getppid()
    if told := os.environ.get(environment.PARENT):
        return parent != int(told)
    if "DVC_STAGE" not in os.environ:
        return False
    try:
        return os.getpgid(parent) != os.getpgrp()
    except ProcessLookupError:
        return True
