"""Early end of a stage's processes: on a signal, and when the parent process ends.

Imports only the standard library, and modules that do, so that `begin` takes effect milliseconds after the process
starts, long before torch is imported.
"""

from __future__ import annotations

import atexit
import gc
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Literal, NoReturn

from chunk_grpo import environment
from chunk_grpo.errors import Stopped
from chunk_grpo.guard import ask_for_signal_at_parents_end

STOP_SECONDS = 600
"""Default seconds from a stop request to SIGKILL, for a training to save its checkpoint. Other stages end at once."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Sent by Ctrl-C, by a scheduler, and by a closing terminal."""

_STDERR = 2


def stop_seconds() -> float:
    """Seconds from a stop request to SIGKILL.

    Raises:
        ConfigError: The environment variable is not a whole number of at least 1.
    """
    return float(environment.whole_number(environment.STOP_SECONDS, STOP_SECONDS))


class StopSignal:
    """Handler of the stop signals: ends the process, raises an exception, or sets a flag that long work polls.

    Only the first signal counts, except that a second Ctrl-C ends the process at once.

    Attributes:
        requested: Whether a stop signal has arrived.
    """

    def __init__(self) -> None:
        self.requested = False
        self._name = ""
        self._answer: Literal["exit", "raise", "wait"] = "exit"

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Inside the block a stop signal raises `Stopped`. Afterwards the previous handlers are restored."""
        before = self.listen()
        self._answer = "raise"
        try:
            yield
        finally:
            self._answer = "exit"
            for number, handler in before.items():
                if signal.getsignal(number) is not signal.SIG_DFL:  # SIG_DFL: `handle` received Ctrl-C
                    signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside the block a stop signal only sets `requested`. The work must poll it, save a checkpoint and return."""
        self._answer = "wait"
        try:
            yield
        finally:
            self._answer = "raise"
        if self.requested:
            self._leave()

    def listen(self) -> dict[signal.Signals, Any]:
        """Install `handle` for the stop signals, except ignored ones (nohup); return the previous handlers."""
        return {
            number: signal.signal(number, self.handle)
            for number in STOP_SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a stop signal."""
        del frame
        mute_lost_outputs()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process
        if self.requested:
            return
        self.requested, self._name = True, signal.Signals(number).name
        # Python's final garbage collection takes seconds with torch loaded; freezing the objects skips it.
        atexit.register(gc.freeze)
        if self._answer == "raise":
            self._leave()
        if self._answer == "exit":
            with suppress(OSError):
                os.write(_STDERR, f"{self._message()}\n".encode())
            os._exit(Stopped.exit_code)

    def _leave(self) -> NoReturn:
        raise Stopped(self._message())

    def _message(self) -> str:
        return f"stopped by {self._name}. Run the same command again; a training resumes from its newest checkpoint."


STOP = StopSignal()
"""Stop handler of this process. Training defers it."""


def begin() -> None:
    """Install the stop handlers, and end with the parent process. Every stage process calls this first."""
    STOP.listen()
    ask_for_signal_at_parents_end()
    if _parent_has_ended():
        os.kill(os.getpid(), signal.SIGTERM)


def mute_lost_outputs() -> None:
    """Redirect stdout and stderr to /dev/null if their terminal or pipe is closed: writing to it would raise."""
    for output in (1, _STDERR):
        poll = select.poll()
        poll.register(output, 0)
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, output)
            os.close(nowhere)


def _parent_has_ended() -> bool:
    """Whether the parent process ended before `ask_for_signal_at_parents_end`.

    An orphan is adopted by process 1 or another ancestor. The launcher passes its process id in `environment.PARENT`.
    DVC does not, but it starts a stage in its own process group, and the adopting process is in another one.
    """
    parent = os.getppid()
    if expected := os.environ.get(environment.PARENT):
        return parent != int(expected)
    if "DVC_STAGE" not in os.environ:
        return False
    try:
        return os.getpgid(parent) != os.getpgrp()
    except ProcessLookupError:
        return True
