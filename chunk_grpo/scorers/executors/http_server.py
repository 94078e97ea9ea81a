"""A scoring server as a process: its socket, its signals, its end."""

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

_KEEP_SECONDS = 60  # an idle connection; longer than the client does


def serve(scorer: Scorer, address: tuple[str, int], limits: Limits, merge: int = 1) -> int:
    """Serve a scorer until SIGTERM or SIGINT; must be called in the main thread.

    Args:
        scorer: What scores.
        address: Host and port; port 0: any free one.
        limits: What is taken from clients.
        merge: See ScoringThread.

    Returns:
        0 after a signal, when the batch that was being scored is answered; 1 if a second signal cut that short.

    Raises:
        ConfigError: The address cannot be listened on, or a package is missing.
        DataError: A file is missing.
    """
    with _listen(*address) as listener:
        thread = ScoringThread(scorer, merge)
        config = uvicorn.Config(
            ScoringApp(thread, limits).asgi(),
            log_config=None,  # its lines go where ours do
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
    thread.leave()  # again, for a signal that came before there was anything to shut down
    thread.join()
    if thread.failure is not None:
        raise thread.failure
    return 0


class _Server(uvicorn.Server):
    """After a signal it scores nothing that still waits, and the process's exit code is ours."""

    def __init__(self, config: uvicorn.Config, thread: ScoringThread) -> None:
        super().__init__(config)
        self._thread = thread

    def stop(self) -> None:
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        self.force_exit = self.should_exit  # at the second one
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # As uvicorn's, but for raising the signals again at the end, which would be the exit code.
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
