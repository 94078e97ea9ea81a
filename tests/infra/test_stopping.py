"""What becomes of the processes when `make serve` and its like end, by themselves or by force."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from infra.local_prefect import LocalPrefect
from infra.setup import SetUpError

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]


@pytest.fixture
def asked() -> Iterator[tuple[int, list[str]]]:
    """The port of a server that refuses everything for a while, and what it was asked."""
    paths: list[str] = []

    class Busy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(503)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            del args

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, paths
        server.shutdown()


def test_everything_ends_when_the_server_takes_no_state(tmp_path: Path, asked: tuple[int, list[str]]) -> None:
    port, paths = asked
    prefect = LocalPrefect(root=tmp_path, home=tmp_path, port=port)
    for name in ("server", "worker-cpu"):
        prefect._start(name, SLEEP)
    started = [prefect.process(name) for name in ("server", "worker-cpu")]
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 3}),
        pytest.raises(SetUpError, match=r"did not take it .*server\.log"),
    ):
        prefect.stop()
    assert len(paths) == 2
    assert not [process for process in started if psutil.pid_exists(process.pid)]
