"""Calls in a thread of their own: whoever waits for one still hears signals, and may give it up."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, TypeVar

from chunk_grpo.errors import TransientError

Result = TypeVar("Result")

_LOOK_SECONDS = 0.5  # how often a waiting thread looks whether it is to go on


class Background:
    """One thread that makes calls in their order.

    It is a daemon, so a process ends though a call never returns. If one was given up and still runs then, the process
    ends without the interpreter's own clearing up, which a thread in foreign code (CUDA, OpenMP) could crash.
    """

    def __init__(self, name: str) -> None:
        """Start it, on the GPU that the calling thread uses.

        Args:
            name: Of the thread, for debuggers.
        """
        self._calls: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._calls = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(_device(),), name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Have a call made after those before it; cancelling the result before its turn takes it back."""
        answer: Future[Result] = Future()
        self._calls.put((answer, function, arguments))
        return answer

    def end(self, seconds: float | None = None) -> None:
        """End the thread after the calls that were submitted.

        Args:
            seconds: To wait for it; after that the call under way is given up, by a process that ends with exit code
                75. None: for as long as it takes.
        """
        self._calls.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            # Not atexit: before that, Python waits for the threads of every ThreadPoolExecutor that the call may have.
            threading._register_atexit(_leave, self._thread)  # type: ignore[attr-defined]  # of Python's own libraries

    def _run(self, device: int | None) -> None:
        if device is not None:
            sys.modules["torch"].cuda.set_device(device)
        while (call := self._calls.get()) is not None:
            answer, function, arguments = call
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(function(*arguments))
            except BaseException as error:  # the waiting thread raises it
                answer.set_exception(error)


def waited(answer: Future[Result], check: Callable[[], object]) -> Result:
    """The result of a call, or its error.

    Args:
        answer: Of `Background.submit`.
        check: Called while the call takes its time; what it raises ends the wait.
    """
    while not wait([answer], _LOOK_SECONDS).done:
        check()
    return answer.result()


def _device() -> int | None:
    """The GPU of this thread; a new thread would use the first one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.current_device())


def _leave(thread: threading.Thread) -> None:
    """At the process's end: do not clear up around a call that was given up."""
    if thread.is_alive():
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(TransientError.exit_code)
