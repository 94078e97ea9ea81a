"""The server of a scorer: `GET /health` and `POST /score`. Standard library only.

It serves the stage that started it, over a socket that nobody else can reach (`serve`), or whoever reaches its port,
within `Limits` (chunk_grpo.scorers.serve). One thread a connection receives and answers. The main thread scores, one
batch at a time in order of arrival, because a model uses its device exclusively.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from .messages import (
    Batch,
    Start,
    TransientError,
    Worker,
    error_message,
    identified,
    read_message,
    read_start,
    ready_message,
    scores_message,
)
from .requests import RETRY, RefusedRequestError, RequestHandler

_LOG = logging.getLogger(__name__)

_ANSWER_SECONDS = 1.0
"""Time for sending the error of a call that hangs, before the process ends."""
_LEAVE_SECONDS = 5.0
"""Time for sending the last answers."""
_TRY_LATER = 75
"""Exit code of a process that may be started again."""


@dataclass(frozen=True)
class Limits:
    """Limits for requests to a server that others can reach."""

    held_bytes: int
    """Maximum size of all request bodies held at once, including that of the batch being scored."""
    most_bytes: int
    """Maximum size of a request body."""
    token: str | None
    """Token that requests must carry; None: none, and only requests to a loopback address are answered."""
    batch_seconds: float
    """Time limit of a call of the scorer."""


_NO_LIMITS = Limits(held_bytes=2**62, most_bytes=2**62, token=None, batch_seconds=threading.TIMEOUT_MAX)
"""Limits of a server for the stage that started it, which has limits of its own."""


def serve(open_worker: Callable[[Start], Worker]) -> None:
    """Serve a scorer to the stage that started this process, and end with it.

    Args:
        open_worker: Makes the scorer. An exception that it raises is sent to the stage.
    """
    stage = _take_input()
    line = stage.readline()
    if not line:
        sys.exit("this worker is started by a stage: name it in executors.NAME.script")
    message = read_message(line)
    server = ScoringServer(socket.socket(fileno=message["socket"]))
    threading.Thread(target=_end_with_the_stage, args=(stage, server), daemon=True).start()

    def opened() -> Worker:
        start = read_start(message)
        return identified(open_worker(start), start)

    server.run(opened)


class ScoringServer(ThreadingHTTPServer):
    """A scorer behind a listening socket.

    Attributes:
        limits: Limits for requests.
        is_private: Whether only the stage that started the process can reach the server.
        is_leaving: Whether it takes no batches any more.
    """

    daemon_threads = True

    def __init__(self, listener: socket.socket, limits: Limits | None = None) -> None:
        """Answer nothing yet.

        Args:
            listener: Listening socket, which the server closes.
            limits: Limits for requests; None: only the stage that started the process can reach the socket.
        """
        super().__init__(("", 0), RequestHandler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.is_private, self.limits = listener, limits is None, limits or _NO_LIMITS
        listener.set_inheritable(False)
        self._about: Future[Mapping[str, Any]] = Future()
        self.is_leaving, self._lock = False, threading.Lock()
        self._jobs: SimpleQueue[tuple[Batch, Future[Mapping[str, Any]]] | None] = SimpleQueue()
        self._begun: float | None = None
        self._batches, self._held = 0, 0

    def run(self, open_worker: Callable[[], Worker]) -> None:
        """Open a worker, score with it until `leave`, and close it, all in the calling thread.

        An error of `open_worker` is raised, or is the answer to `GET /health` if only the stage can reach the server.
        """
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        try:
            worker = self._opened(open_worker)
            if worker is None:
                self._jobs.get()
                return
            try:
                while (job := self._jobs.get()) is not None:
                    self._score(worker, *job)
            finally:
                worker.close()
            end = time.monotonic() + _LEAVE_SECONDS
            while self._batches and time.monotonic() < end:
                time.sleep(0.02)
        finally:
            self.shutdown()
            self.server_close()

    @property
    def is_idle(self) -> bool:
        """Whether the worker is open and does not score."""
        return self._about.done() and self._begun is None

    def leave(self) -> None:
        """Refuse the waiting batches, and let `run` end after the batch being scored."""
        self.is_leaving = True
        with contextlib.suppress(Empty):
            while job := self._jobs.get_nowait():
                if job[1].set_running_or_notify_cancel():
                    job[1].set_exception(_leaving())
        self._jobs.put(None)

    def about(self) -> Mapping[str, Any]:
        """The `ready` message, or the error of a worker that could not be opened."""
        if not self.is_private and not self._about.done():
            raise RefusedRequestError(503, "the scorer is loading; retry later", RETRY)
        return self._about.result()

    def state(self) -> dict[str, Any]:
        """What the server does, for whoever watches it."""
        begun = self._begun
        return {
            "state": "ready" if begun is None else "scoring",
            "scoring_seconds": None if begun is None else time.monotonic() - begun,
            "queue": self._batches,
            "held_bytes": self.limits.held_bytes,
            "most_bytes": self.limits.most_bytes,
        }

    def submit(self, batch: Batch) -> Future[Mapping[str, Any]]:
        """Queue a batch, or refuse it if the server shuts down. If the answer is cancelled, it is not scored."""
        answer: Future[Mapping[str, Any]] = Future()
        if self.is_leaving:
            answer.set_exception(_leaving())
        else:
            self._jobs.put((batch, answer))
        return answer

    def count(self, batches: int = 0, size: int = 0) -> None:
        """Count what requests hold, less what they give back. More than the server may hold is refused."""
        with self._lock:
            if size > 0:
                self.require_room(size)
            self._batches += batches
            self._held += size

    def require_room(self, size: int) -> None:
        """Refuse a request with so many bytes more, if the server would hold too many."""
        if self._held + size > self.limits.held_bytes:
            raise RefusedRequestError(
                503,
                f"the queue is full ({self._batches - 1} batches, {self._held} of {self.limits.held_bytes} bytes); "
                "retry later",
                RETRY,
            )

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error of a connection."""
        del request, client_address
        if not isinstance(sys.exc_info()[1], OSError):
            _LOG.exception("a request failed")
        elif not self.is_private:  # else the stage, its one client, says why
            _LOG.warning("a client disconnected before its answer")

    def _opened(self, open_worker: Callable[[], Worker]) -> Worker | None:
        try:
            worker = open_worker()
        except Exception as error:
            if not self.is_private:
                raise
            self._about.set_result(error_message(error))  # the stage raises it
            return None
        self._about.set_result(ready_message(worker))
        _LOG.info("ready: %s, version %s", worker.name, worker.version)
        return worker

    def _score(self, worker: Worker, batch: Batch, answer: Future[Mapping[str, Any]]) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        self._begun = start = time.monotonic()
        timer = threading.Timer(self.limits.batch_seconds, self._give_up, (worker.name, answer))
        timer.start()
        message: Mapping[str, Any] = {}
        failure = None
        try:
            message = scores_message(batch.id, worker.score(batch), worker.spec_hash)
        except Exception as error:  # the client raises it
            failure = error
        finally:
            timer.cancel()
            self._begun = None  # first: the stage may end its worker as soon as it has the answer
        if answer.done():  # by `_give_up`, which ends the process
            return
        if failure is None:
            answer.set_result(message)
        else:
            answer.set_exception(failure)
        _LOG.info("%d images in %.2f s, %d batches wait", len(batch.rows), time.monotonic() - start, self._jobs.qsize())

    def _give_up(self, name: str, answer: Future[Mapping[str, Any]]) -> None:
        """End the process: a call that hangs cannot be ended alone."""
        answer.set_exception(
            TransientError(
                f"the scorer {name} gave no answer within {self.limits.batch_seconds:g} s (--batch-seconds) and still "
                "runs, so its server ends; start it again"
            )
        )
        _LOG.error("a batch exceeded its time limit and still runs; the server ends")
        time.sleep(_ANSWER_SECONDS)
        os._exit(_TRY_LATER)


def _leaving() -> TransientError:
    return TransientError("the scoring server is shutting down; it did not score this batch")


def _take_input() -> io.FileIO:
    """Take over the standard input, by which a stage says that it is there. The scorer gets an empty one."""
    stage = io.FileIO(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return stage


def _end_with_the_stage(stage: io.FileIO, server: ScoringServer) -> None:
    """Wait until the stage closes the input. In the middle of a batch the process ends at once: nobody waits for it."""
    address = Path(server.socket.getsockname())
    while stage.read(1):
        pass
    with contextlib.suppress(OSError):
        address.unlink()
        address.parent.rmdir()
    if not server.is_idle:
        os._exit(1)
    server.leave()
