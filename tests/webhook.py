"""A webhook on this machine, known to a Prefect server: what a team's chat would be told."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from infra.local_prefect import LocalPrefect
from tests.infra.conftest import set_up


@contextmanager
def webhook(prefect: LocalPrefect) -> Iterator[list[str]]:
    """Messages to a webhook that set-up registered at the server, one text per call."""
    texts: list[str] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert (self.path, self.headers["Content-Type"]) == ("/services/secret", "application/json")
            texts.append(json.loads(body)["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            del args

    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as hook:
        threading.Thread(target=hook.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{hook.server_port}/services/secret"
        set_up(prefect, CHUNK_GRPO_NOTIFY_WEBHOOK=url)
        try:
            yield texts
        finally:
            hook.shutdown()
