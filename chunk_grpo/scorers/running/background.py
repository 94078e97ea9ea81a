"""Calls in a background thread. The waiting thread still handles signals and may abandon a call."""

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

_LOOK_SECONDS = 0.5  # interval between calls of `check` in `waited`


class Background:
    """One thread that runs calls in order of submission.

    The thread is a daemon, so a process can end although a call never returns. If an abandoned call still runs at the
    end, the process skips the interpreter's finalisation: a thread in native code (CUDA, OpenMP) could crash it.
    """

    def __init__(self, name: str) -> None:
        """Start the thread on the calling thread's GPU.

        Args:
            name: Name of the thread, for debuggers.
        """
        self._calls: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._calls = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(current_gpu(),), name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Queue a call. Cancelling the future before the call starts removes it from the queue."""
        answer: Future[Result] = Future()
        self._calls.put((answer, function, arguments))
        return answer

    def end(self, seconds: float | None = None) -> None:
        """End the thread after the submitted calls.

        Args:
            seconds: Time to wait. After that the running call is abandoned, and the process will end with exit code
                75 if the call still runs. None: wait without limit.
        """
        self._calls.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            # Not atexit: before it, Python joins the threads of every ThreadPoolExecutor, which the call may use.
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
    """Wait for a call; return its result or raise its error.

    Args:
        answer: Future from `Background.submit`.
        check: Called repeatedly during the wait; an exception that it raises ends the wait.
    """
    while not wait([answer], _LOOK_SECONDS).done:
        check()
    return answer.result()


def current_gpu() -> int | None:
    """Current GPU of this thread; a new thread would default to the first GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.current_device())


def _leave(thread: threading.Thread) -> None:
    """At exit, end the process without finalisation if an abandoned call still runs."""
    if thread.is_alive():
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(TransientError.exit_code)
