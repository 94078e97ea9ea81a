"""HTTP routes of the scoring server: GET /health and POST /score."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from chunk_grpo.errors import ChunkGrpoError
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.executors.access import is_loopback
from chunk_grpo.scorers.executors.messages import answer_of, decode_batch
from chunk_grpo.scorers.executors.scoring_queue import ScoringQueue
from chunk_grpo.scorers.workers import worker_protocol

_LOG = logging.getLogger(__name__)

_RETRY = {"Retry-After": "1"}
_BODY_SECONDS = 300.0
"""Limit for receiving a body, so that a lost client does not hold memory."""
_SILENT_SECONDS = 30.0
"""Limit for the first bytes of a body, and for the next ones."""
_FOLDERS = re.compile(r"(?<![\w:/])~?/(?:[^/\s'\"]+/)*(?=[^/\s])")
"""Folders of an absolute path, not those of a URL."""


@dataclass(frozen=True)
class Limits:
    """Limits for requests to a server."""

    held_bytes: int
    """Maximum size of all request bodies held at once, including that of the batch being scored."""
    most_bytes: int
    """Maximum size of a request body."""
    token: str | None
    """Token that requests must carry; None: none, and only requests to a loopback address are answered."""


class ScoringApp:
    """Web application that passes requests to a scoring queue."""

    def __init__(self, queue: ScoringQueue, limits: Limits) -> None:
        """Keep the queue, which the caller runs."""
        self._queue, self._limits, self._held, self._batches = queue, limits, 0, 0

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
        limits = {"held_bytes": self._limits.held_bytes, "most_bytes": self._limits.most_bytes}
        seconds = self._queue.scoring_seconds
        state = {"state": "ready" if seconds is None else "scoring", "scoring_seconds": seconds}
        return _response(200, {**self._ready(), **state, "queue": self._batches, **limits})

    async def _score(self, request: Request) -> Response:
        self._authorize(request)
        spec_hash = self._ready()["spec_hash"]
        body, held = bytearray(), 0
        self._batches += 1
        try:
            async for chunk in self._chunks(request):
                body += chunk
                held += len(chunk)
                self._held += len(chunk)
            question, batch = await run_in_threadpool(_read, body)
            del body
            return await self._answer(request, question, batch, spec_hash)
        finally:
            self._batches -= 1
            self._held -= held

    async def _answer(self, request: Request, question: str, batch: ScoreBatch, spec_hash: str) -> Response:
        try:
            scores = await _unless_disconnected(request, self._queue.score(batch))
        except ClientDisconnect:
            raise
        except Exception as error:  # the client raises it
            if not isinstance(error, ChunkGrpoError):
                _LOG.exception("the scorer failed")
            message = worker_protocol.error_message(error, question)
            del message["traceback"]
            return _response(500, message | {"message": _FOLDERS.sub("", str(error))})
        return _response(200, worker_protocol.scores_message(question, answer_of(scores), spec_hash))

    def _authorize(self, request: Request) -> None:
        host = request.headers.get("Host", "")
        if self._limits.token is None and not _names_loopback(host):  # a page of a browser: DNS rebinding
            raise HTTPException(
                400,
                f"without a token the host must be a loopback address such as 127.0.0.1, got {host[:80]!r}",
            )
        given = request.headers.get("Authorization", "").encode("utf-8")
        if self._limits.token and not hmac.compare_digest(given, f"Bearer {self._limits.token}".encode()):
            raise HTTPException(401, "the token is missing or wrong", {"WWW-Authenticate": "Bearer"})

    def _ready(self) -> Mapping[str, Any]:
        if self._queue.ready is None:
            raise HTTPException(503, "the scorer is loading; retry later", _RETRY)
        return self._queue.ready

    async def _chunks(self, request: Request) -> AsyncIterator[bytes]:
        """Parts of a body, for which there is room. A client that announces a body and sends nothing holds nothing."""
        size, most = request.headers.get("Content-Length", ""), self._limits.most_bytes
        if not size.isdecimal():
            raise HTTPException(411, "the request must have a Content-Length")
        if int(size) > most:
            raise HTTPException(413, f"the body must have at most {most} bytes, got {size}")
        self._require_room(int(size))
        parts, end = request.stream(), time.monotonic() + _BODY_SECONDS
        try:
            while part := await asyncio.wait_for(anext(parts), min(_SILENT_SECONDS, end - time.monotonic())):
                self._require_room(len(part))
                yield part
        except TimeoutError:
            raise HTTPException(
                408,
                f"the body must arrive within {_BODY_SECONDS:g} s, without pauses above {_SILENT_SECONDS:g} s",
                _RETRY,
            ) from None

    def _require_room(self, size: int) -> None:
        if self._held + size > self._limits.held_bytes:
            raise HTTPException(
                503,
                f"the queue is full ({self._batches - 1} batches, {self._held} of {self._limits.held_bytes} bytes); "
                "retry later",
                _RETRY,
            )


def _names_loopback(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _read(body: bytearray) -> tuple[str, ScoreBatch]:
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
