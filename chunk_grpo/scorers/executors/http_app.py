"""HTTP routes of the scoring server: GET /health and POST /score."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from chunk_grpo.errors import ChunkGrpoError
from chunk_grpo.scorers.base import Scores
from chunk_grpo.scorers.executors.access import is_allowed
from chunk_grpo.scorers.executors.scoring_thread import ScoringThread
from chunk_grpo.scorers.executors.wire import answer_of
from chunk_grpo.scorers.running.transient import may_pass
from chunk_grpo.scorers.workers import lines

_LOG = logging.getLogger(__name__)

_RETRY_SECONDS = 1
_BODY_SECONDS = (
    300.0  # limit for receiving a body, so that a lost client does not hold its place in the queue
)
_LOOK_SECONDS = 0.5  # interval of the check whether a waiting client is still connected


@dataclass(frozen=True)
class Limits:
    """Limits for requests to a server.

    Attributes:
        queue: Maximum number of batches held at once, including the one being scored.
        most_bytes: Maximum size of a request body.
        token: Token that requests must carry; None: no token required.
    """

    queue: int
    most_bytes: int
    token: str | None


class _RefusedError(Exception):
    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class ScoringApp:
    """Web application that passes requests to a scoring thread."""

    def __init__(self, thread: ScoringThread, limits: Limits) -> None:
        """Keep the thread, which the caller starts and ends."""
        self._thread, self._limits, self._held = thread, limits, 0

    def asgi(self) -> Starlette:
        """The Starlette application."""
        return Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                Route("/score", self._score, methods=["POST"]),
            ]
        )

    async def _health(self, request: Request) -> Response:
        try:
            self._authorize(request)
        except _RefusedError as error:
            return _refusal(error)
        about = {
            "queue": self._held,
            "queue_limit": self._limits.queue,
            "most_bytes": self._limits.most_bytes,
        }
        ready = self._thread.ready
        if ready is None:
            return _response(503, {"type": "loading", "state": "loading", **about})
        return _response(200, {**ready, "state": "ready", **about})

    async def _score(self, request: Request) -> Response:
        question = None
        try:
            self._authorize(request)
            with self._place() as ready:
                batch = await run_in_threadpool(_read, await self._arrived(request))
                question = batch.id
                future = await run_in_threadpool(self._thread.submit, batch)
                scores = await _result(request, future)
                return _response(200, lines.scores_message(batch, *answer_of(scores), ready["spec_hash"]))
        except _RefusedError as error:
            return _refusal(error)
        except ClientDisconnect:
            _LOG.warning("a client disconnected before its answer")
            return Response(status_code=499)
        except Exception as error:  # the client raises it
            if not isinstance(error, ChunkGrpoError):
                _LOG.exception("the scorer failed")
            return _response(_status(error), {**lines.error_message(error), "id": question})

    def _authorize(self, request: Request) -> None:
        if not is_allowed(request.headers.get("Authorization", ""), self._limits.token):
            raise _RefusedError(401, "the token is missing or wrong", {"WWW-Authenticate": "Bearer"})

    @contextmanager
    def _place(self) -> Iterator[Mapping[str, Any]]:
        """Reserve a place in the queue; before the body is read, to bound memory."""
        ready = self._thread.ready
        if ready is None or self._held >= self._limits.queue:
            reason = "the scorer is loading" if ready is None else f"the queue is full ({self._held} batches)"
            raise _RefusedError(503, f"{reason}; retry later", {"Retry-After": str(_RETRY_SECONDS)})
        self._held += 1
        try:
            yield ready
        finally:
            self._held -= 1

    async def _arrived(self, request: Request) -> bytes:
        try:
            return await asyncio.wait_for(self._body(request), _BODY_SECONDS)
        except asyncio.TimeoutError:
            raise _RefusedError(408, f"the body must arrive within {_BODY_SECONDS:g} s") from None

    async def _body(self, request: Request) -> bytes:
        most = self._limits.most_bytes
        announced = request.headers.get("Content-Length", "")
        size, blocks = int(announced) if announced.isdigit() else 0, []
        if size <= most:
            size = 0
            async for block in request.stream():
                size += len(block)
                if size > most:
                    break
                blocks.append(block)
        if size > most:
            raise _RefusedError(413, f"the body must have at most {most} bytes, got {size} or more")
        return b"".join(blocks)


def _read(body: bytes) -> lines.Batch:
    try:
        return lines.read_batch(lines.read_message(body))
    except lines.MalformedError as error:
        raise _RefusedError(400, str(error)) from error


async def _result(request: Request, future: Future[Scores]) -> Scores:
    """Wait for the scores. If the client disconnects, its batch is cancelled unless it is being scored."""
    waiting = asyncio.wrap_future(future)
    while not waiting.done():
        await asyncio.wait({waiting}, timeout=_LOOK_SECONDS)
        if not waiting.done() and await request.is_disconnected():
            future.cancel()
            raise ClientDisconnect
    return waiting.result()


def _status(error: Exception) -> int:
    """HTTP status of an error, for other clients; this package's client reads the message instead."""
    if may_pass(error):
        return 503
    return 422 if isinstance(error, ChunkGrpoError) else 500


def _response(status: int, message: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    return Response(lines.write_message(message), status, headers, media_type="application/json")


def _refusal(error: _RefusedError) -> Response:
    return _response(error.status, {"type": "refused", "message": str(error)}, error.headers)
