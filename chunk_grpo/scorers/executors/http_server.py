"""Process of a scoring server: socket, signals and shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from chunk_grpo.errors import ConfigError, TransientError
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.executors.http_app import Limits, ScoringApp
from chunk_grpo.scorers.executors.scoring_queue import ScoringQueue

_LOG = logging.getLogger(__name__)

_KEEP_SECONDS = 60  # keep-alive of idle connections; longer than the client's


_HEADER_SECONDS = 30.0
"""Limit for the head of a request, which uvicorn does not have."""

_ANSWER_SECONDS = 1.0
"""Time for sending the error of a call that hangs, before the process ends."""


def serve(
    scorer: Scorer,
    address: tuple[str, int],
    limits: Limits,
    merge: int = 1,
    batch_seconds: float | None = None,
) -> None:
    """Serve a scorer until SIGTERM or SIGINT. Must be called in the main thread.

    A second signal ends the process with exit code 1 although a batch is being scored, and a call that exceeds its time
    limit ends it with exit code 75.

    Args:
        scorer: Scorer to serve.
        address: Host and port; port 0: any free port.
        limits: Limits for requests.
        merge: See ScoringQueue.
        batch_seconds: See ScoringQueue.

    Raises:
        ConfigError: Listening on the address fails, or a package is missing.
        DataError: A file is missing.
    """
    with _listen(*address) as listener:
        host, port = listener.getsockname()[:2]
        _LOG.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        ScoringServer(scorer, limits, merge, batch_seconds).run([listener])


class _Connection(H11Protocol):
    """Connection that closes if the head of a request does not arrive."""

    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_watch()

    def _expect_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_watch()
        elif self._watch is None:
            self._watch = self.loop.call_later(_HEADER_SECONDS, self.transport.close)

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None


class ScoringServer(uvicorn.Server):
    """Server with a scoring queue. After a signal it answers the running batch and refuses those that wait."""

    def __init__(
        self, scorer: Scorer, limits: Limits, merge: int = 1, batch_seconds: float | None = None
    ) -> None:
        """See `serve`."""
        self._queue = ScoringQueue(scorer, merge, batch_seconds)
        config = uvicorn.Config(
            ScoringApp(self._queue, limits).asgi(),
            log_config=None,  # use this process's logging
            access_log=False,
            lifespan="off",
            timeout_keep_alive=_KEEP_SECONDS,
            http=_Connection,
            ws="none",
        )
        super().__init__(config)

    def stop(self) -> None:
        """Shut down as after a signal."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal. Unlike uvicorn's, does not send it again at the end, which would set the exit code."""
        del sig, frame
        if self.should_exit:
            os._exit(1)
        self.stop()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Run server and queue; raise the error of a scorer that cannot be checked."""
        scoring = asyncio.create_task(self._queue.run())
        scoring.add_done_callback(lambda _: self.stop())
        watching = asyncio.create_task(self._end_if_it_hangs())
        await super().serve(sockets)
        watching.cancel()
        self._queue.leave()  # again, for a signal during startup, after which uvicorn may skip `shutdown`
        await scoring

    async def _end_if_it_hangs(self) -> None:
        await self._queue.hangs.wait()
        _LOG.error("a batch exceeded its time limit and still runs; the server ends")
        await asyncio.sleep(_ANSWER_SECONDS)
        os._exit(TransientError.exit_code)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse the waiting batches, and wait for the answers."""
        self._queue.leave()
        await super().shutdown(sockets)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host, --port: cannot listen on {host}, port {port} ({error})") from error
