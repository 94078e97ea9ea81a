"""Try again or give up: which failures of a scorer are worth another attempt, after what pause, and within what time.

One rule for all executors. The last failure ends the stage; it never counts as a score of 0.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from itertools import count
from queue import SimpleQueue
from typing import Any, TypeVar

from chunk_grpo.errors import ChunkGrpoError, TransientError
from chunk_grpo.progress import duration
from chunk_grpo.scorers.base import ScoreBatch, Scorer, Scores
from chunk_grpo.scorers.workers.worker_protocol.messages import facts_of

Result = TypeVar("Result")

_LOG = logging.getLogger(__name__)

AWAY_SECONDS = 6.0
"""Seconds for which a scorer may be away in evaluation. Training uses `train.reward_away_seconds`."""

_FIRST_WAIT, _LONGEST_WAIT = 2.0, 30.0
"""Seconds before the second attempt, and at most before any: each wait is twice the one before it."""

_TOLD_SECONDS = 60.0
"""Least seconds between two warnings about a scorer that is away."""

_LOOK_SECONDS = 0.5
"""Interval between calls of `check` in `waited`."""

_PASSING = {
    *("builtins.ConnectionError", "builtins.TimeoutError", "socket.gaierror"),
    *("asyncio.TimeoutError", "concurrent.TimeoutError"),  # of Python's own kind from 3.11 on
    *("http.IncompleteRead", "urllib.URLError"),
    "httpx.TransportError",
    "openai.APIConnectionError",
    *("aiohttp.ClientConnectionError", "aiohttp.ClientPayloadError"),
    *("requests.ConnectionError", "requests.Timeout", "requests.ChunkedEncodingError"),
    *("urllib3.TimeoutError", "urllib3.NewConnectionError", "urllib3.ProtocolError"),
}
"""Package and class of errors that may pass: the network was unreachable, slow or cut off."""

_LASTING = {
    "httpx.UnsupportedProtocol",  # a URL without http:// or https://
    "aiohttp.ClientConnectorCertificateError",
    "requests.SSLError",
}
"""Subclasses of `_PASSING` that do not pass: the address or a certificate is wrong."""

_WITH_STATUS = {
    *("httpx.HTTPStatusError", "openai.APIStatusError", "aiohttp.ClientResponseError", "requests.HTTPError"),
    "urllib.HTTPError",
}
"""Errors of a server that answered: the HTTP status decides."""

_STATUSES = {408, 409, 425, 429}
"""HTTP statuses that may pass: time-out, conflict, too early, too many requests. All from 500 on may pass too."""

_OF_THE_SYSTEM = {*(errno.EAGAIN, errno.EHOSTUNREACH, errno.EIO, errno.ENETDOWN, errno.ENETUNREACH, errno.ESTALE)}
"""Error numbers that may pass: the network or a network file system is unavailable."""


class TimeLimitError(TransientError):
    """A scorer exceeded its time limit and still runs. It cannot be called again in this process."""


def score_with_retries(name: str, scorer: Scorer, batch: ScoreBatch, away_seconds: float = AWAY_SECONDS) -> Scores:
    """Score a batch; retry failures that `may_pass` accepts, after growing waits. Others are raised at once.

    Args:
        name: Name of the scorer in params.yaml, for messages.
        scorer: Scorer to call.
        batch: B images.
        away_seconds: Time from the first failure to the last attempt, at least 0.

    Returns:
        The scorer's answer, not checked by `check_scores`.

    Raises:
        TransientError: The scorer was away for longer. The process ends with exit code 75; the command can be rerun.
    """
    began, told, pause = None, -math.inf, _FIRST_WAIT
    for attempt in count(1):
        try:
            return scorer.score(batch)
        except Exception as error:
            if not may_pass(error):
                if not isinstance(error, ChunkGrpoError):  # those say it themselves
                    _LOG.error("scorer %s failed with %s", name, type(error).__name__)
                raise
            now = time.monotonic()
            began = now if began is None else began
            away = f"scorer {name}: no answer for {duration(now - began)}"
            left = began + away_seconds - now
            if left <= 0:
                tried = "1 attempt" if attempt == 1 else f"{attempt} attempts"
                raise TransientError(
                    f"{away}, after {tried}; the last failed with {_reason(error)}. "
                    "No score was made up. Run the same command again when the scorer answers: what is done is kept."
                ) from error
            if now - told >= _TOLD_SECONDS:
                _LOG.warning("%s (%s); asked again for %s more", away, _reason(error), duration(left))
                told = now
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_WAIT)
    raise AssertionError("unreachable")


def _reason(error: BaseException) -> str:
    """Type and message of the error; some network errors have no message."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def may_pass(error: BaseException) -> bool:
    """Whether a retry may succeed. False for, among others, a missing file or a refused request.

    False for TimeLimitError, too: the call that took too long still runs.
    """
    if isinstance(error, TransientError):
        return not isinstance(error, TimeLimitError)
    return facts_may_pass(facts_of(error))


def facts_may_pass(facts: Mapping[str, Any]) -> bool:
    """`may_pass` for an error in another process, by its `facts_of`. Its classes need not be installed here."""
    kinds = {_short(name) for name in facts.get("classes", [])}
    if kinds & _WITH_STATUS:
        status = facts.get("status")
        return isinstance(status, int) and (status in _STATUSES or status >= 500)
    if kinds & _LASTING:
        return False
    return bool(kinds & _PASSING) or ("builtins.OSError" in kinds and facts.get("errno") in _OF_THE_SYSTEM)


def _short(name: str) -> str:
    """Package and class, without modules: requests.ConnectionError for requests.exceptions.ConnectionError."""
    return f"{name.partition('.')[0]}.{name.rpartition('.')[2]}"


class Limited:
    """Runs a scorer's calls in a separate thread, so that the stage can abandon a call.

    Attributes:
        scorer: The wrapped scorer.
    """

    def __init__(self, key: str, scorer: Scorer, seconds: float) -> None:
        """Start no thread yet. `seconds` is the time limit of a `score` call, including loading the model."""
        self.scorer, self.settings = scorer, scorer.settings
        self.name, self.version = scorer.name, scorer.version
        self.needs, self.groupwise = scorer.needs, scorer.groupwise
        self._key, self._seconds = key, seconds
        self._thread: Background | None = None
        self._given_up = False

    def check(self) -> None:
        """Check the wrapped scorer, without a time limit: it may download models."""
        self.scorer.check()

    def spec_hash(self) -> str:
        """Hash of the wrapped scorer's version, settings and model files."""
        return self.scorer.spec_hash()

    def score(self, batch: ScoreBatch) -> Scores:
        """Score a batch with the wrapped scorer; TimeLimitError if the call exceeds the limit."""
        if self._given_up:
            raise self._too_long()
        if self._thread is None:
            self._thread = Background(f"scorer {self._key}")
        self._given_up = True  # until it has answered: a signal may end this on any line
        try:
            answer = self._thread.submit(self.scorer.score, batch)
            wait([answer], self._seconds)
            self._given_up = not answer.done()
        finally:
            if self._given_up:
                self._thread.end(seconds=0)
        if self._given_up:
            raise self._too_long()
        return answer.result()

    def close(self) -> None:
        """Close the wrapped scorer, unless an abandoned call still runs."""
        if self._given_up:
            return
        if self._thread is not None:
            self._thread.end()
        self.scorer.close()

    def _too_long(self) -> TimeLimitError:
        return TimeLimitError(
            f"scorer {self._key}: no answer within {self._seconds:g} s (executors.{self._key}.timeout_seconds), and "
            "the call still runs, so the stage ends. No score was made up; what is done is kept. Rerun the same "
            "command, with a longer limit if the scorer needs it: "
            f"executors: {{{self._key}: {{kind: in-process, device: null, timeout_seconds: ...}}}}"
        )


class Background:
    """One thread that runs calls in order of submission.

    The thread is a daemon, so a process can end although a call never returns. If an abandoned call still runs at the
    end, the process skips the interpreter's finalisation: a thread in native code (CUDA, OpenMP) could crash it.
    """

    def __init__(self, name: str) -> None:
        """Start the thread on the calling thread's GPU. The name is for debuggers."""
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
        """End the thread after the submitted calls, but wait for `seconds` at most; None: without a limit.

        A call that takes longer is abandoned. If it still runs at the end of the process, that has exit code 75.
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
    """Result or error of a call of `Background`. `check` is called during the wait; its exception ends the wait."""
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
