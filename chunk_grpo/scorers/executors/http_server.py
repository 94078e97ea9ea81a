"""Process of a scoring server: socket, signals and shutdown."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from chunk_grpo.errors import ConfigError
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.executors.http_app import Limits, ScoringApp
from chunk_grpo.scorers.executors.scoring_thread import ScoringThread

__all__ = ["Limits", "serve"]

_LOG = logging.getLogger(__name__)

_KEEP_SECONDS = 60  # keep-alive of idle connections; longer than the client's


def serve(scorer: Scorer, address: tuple[str, int], limits: Limits, merge: int = 1) -> int:
    """Serve a scorer until SIGTERM or SIGINT. Must be called in the main thread.

    Args:
        scorer: Scorer to serve.
        address: Host and port; port 0: any free port.
        limits: Limits for requests.
        merge: See ScoringThread.

    Returns:
        0 if a signal ended the server after it answered the running batch; 1 if a second signal interrupted that batch.

    Raises:
        ConfigError: Listening on the address fails, or a package is missing.
        DataError: A file is missing.
    """
    with _listen(*address) as listener:
        thread = ScoringThread(scorer, merge)
        config = uvicorn.Config(
            ScoringApp(thread, limits).asgi(),
            log_config=None,  # use this process's logging
            access_log=False,
            lifespan="off",
            timeout_keep_alive=_KEEP_SECONDS,
        )
        server = _Server(config, thread)
        host, port = listener.getsockname()[:2]
        _LOG.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        thread.start(server.stop)
        server.run(sockets=[listener])
    if server.force_exit:
        return 1
    thread.leave()  # again, for a signal that arrived before startup, when uvicorn skips `shutdown`
    thread.join()
    if thread.failure is not None:
        raise thread.failure
    return 0


class _Server(uvicorn.Server):
    """Server that refuses waiting batches after a signal and leaves the exit code to `serve`."""

    def __init__(self, config: uvicorn.Config, thread: ScoringThread) -> None:
        super().__init__(config)
        self._thread = thread

    def stop(self) -> None:
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        self.force_exit = self.should_exit  # at the second signal
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Unlike uvicorn's, does not re-raise the signals at the end, which would set the exit code.
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._thread.leave()
        await super().shutdown(sockets)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host, --port: cannot listen on {host}, port {port} ({error})") from error
