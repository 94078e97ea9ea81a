"""Web server of the published results, on the loopback interface: `python -m infra.reports PORT FOLDER`."""

from __future__ import annotations

import os
import sys
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from chunk_grpo.environment import REPORTS_URL
from chunk_grpo.orchestration.served import LOOPBACK, host_name

POLICY = "sandbox allow-downloads; frame-ancestors 'none'"
"""A published page runs no script and has no origin: it can do nothing at the Prefect server."""


class Handler(SimpleHTTPRequestHandler):
    """Files of one folder. Links out of it are followed for nobody."""

    def send_head(self):  # type: ignore[no-untyped-def]  # as in the standard library: an open file or None
        """Refuse other names of this server, and what lies outside the folder."""
        names = {*LOOPBACK, urlsplit(os.environ.get(REPORTS_URL, "")).hostname} - {None}
        if host_name(self.headers.get("Host", "")) not in names:
            return self.send_error(HTTPStatus.FORBIDDEN, "Host must be a name of this server")
        folder, asked = Path(self.directory).resolve(), Path(self.translate_path(self.path))
        try:
            found = [path.resolve() for path in (asked, asked / "index.html", asked / "index.htm")]
        except (OSError, RuntimeError, ValueError):  # links in a circle, a zero byte
            found = [Path("/")]
        if not all(path.is_relative_to(folder) for path in found):
            return self.send_error(HTTPStatus.NOT_FOUND, "File not found")
        return super().send_head()

    def end_headers(self) -> None:
        """Send the policy with each answer."""
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()


if __name__ == "__main__":
    port, folder = sys.argv[1:]
    handler = partial(Handler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", int(port)), handler) as server:
        server.serve_forever()
