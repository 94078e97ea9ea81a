"""HTTP routes of the scoring server: GET /health and POST /score."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from chunk_grpo.errors import ChunkGrpoError
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.executors.messages import answer_of, decode_batch
from chunk_grpo.scorers.executors.scoring_queue import ScoringQueue
from chunk_grpo.scorers.workers import worker_protocol

_LOG = logging.getLogger(__name__)

_RETRY = {"Retry-After": "1"}
_BODY_SECONDS = (
    300.0  # limit for receiving a body, so that a lost client does not hold its place in the queue
)


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


class ScoringApp:
    """Web application that passes requests to a scoring queue."""

    def __init__(self, queue: ScoringQueue, limits: Limits) -> None:
        """Keep the queue, which the caller runs."""
        self._queue, self._limits, self._held = queue, limits, 0

    def asgi(self) -> Starlette:
        """The Starlette application."""
        return Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                Route("/score", self._score, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _refusal, ClientDisconnect: _farewell},
        )

    async def _health(self, request: Request) -> Response:
        self._authorize(request)
        limits = {"queue_limit": self._limits.queue, "most_bytes": self._limits.most_bytes}
        seconds = self._queue.scoring_seconds
        state = {"state": "ready" if seconds is None else "scoring", "scoring_seconds": seconds}
        return _response(200, {**self._ready(), **state, "queue": self._held, **limits})

    async def _score(self, request: Request) -> Response:
        self._authorize(request)
        spec_hash = self._ready()["spec_hash"]
        with self._place():
            question, batch = await run_in_threadpool(_read, await self._body(request))
            try:
                scores = await _unless_disconnected(request, self._queue.score(batch))
            except ClientDisconnect:
                raise
            except Exception as error:  # the client raises it
                if not isinstance(error, ChunkGrpoError):
                    _LOG.exception("the scorer failed")
                return _response(500, worker_protocol.error_message(error, question))
            return _response(200, worker_protocol.scores_message(question, answer_of(scores), spec_hash))

    def _authorize(self, request: Request) -> None:
        given = request.headers.get("Authorization", "").encode("utf-8")
        if self._limits.token and not hmac.compare_digest(given, f"Bearer {self._limits.token}".encode()):
            raise HTTPException(401, "the token is missing or wrong", {"WWW-Authenticate": "Bearer"})

    def _ready(self) -> Mapping[str, Any]:
        if self._queue.ready is None:
            raise HTTPException(503, "the scorer is loading; retry later", _RETRY)
        return self._queue.ready

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Reserve a place in the queue; before the body is read, to bound memory."""
        if self._held >= self._limits.queue:
            raise HTTPException(503, f"the queue is full ({self._held} batches); retry later", _RETRY)
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    async def _body(self, request: Request) -> bytes:
        size, most = request.headers.get("Content-Length", ""), self._limits.most_bytes
        if not size.isdecimal():
            raise HTTPException(411, "the request must have a Content-Length")
        if int(size) > most:
            raise HTTPException(413, f"the body must have at most {most} bytes, got {size}")
        try:
            return await asyncio.wait_for(request.body(), _BODY_SECONDS)
        except TimeoutError:
            raise HTTPException(408, f"the body must arrive within {_BODY_SECONDS:g} s", _RETRY) from None


def _read(body: bytes) -> tuple[str, ScoreBatch]:
    try:
        batch = worker_protocol.read_batch(worker_protocol.read_message(body))
    except worker_protocol.MalformedError as error:
        raise HTTPException(400, str(error)) from error
    return batch.id, decode_batch(batch)


async def _unless_disconnected(request: Request, scores: Coroutine[Any, Any, Scores]) -> Scores:
    """Scores; if the client disconnects first, its batch is cancelled unless it is being scored."""
    scoring = asyncio.ensure_future(scores)
    disconnected = asyncio.ensure_future(request.receive())  # after the body, nothing else can arrive
    try:
        await asyncio.wait({scoring, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not scoring.done():
            raise ClientDisconnect
        return scoring.result()
    finally:
        scoring.cancel()
        disconnected.cancel()


def _response(status: int, message: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    return Response(worker_protocol.write_message(message), status, headers, media_type="application/json")


async def _refusal(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HTTPException)
    return _response(error.status_code, {"type": "refused", "message": error.detail}, error.headers)


async def _farewell(request: Request, error: Exception) -> Response:
    del request, error
    _LOG.warning("a client disconnected before its answer")
    return Response(status_code=499)
