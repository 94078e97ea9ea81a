"""Requests to a scoring server: which are answered, which refused, and what an error says. Standard library only."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import re
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .messages import KINDS, MalformedError, error_message, read_batch, read_message, write_message

if TYPE_CHECKING:
    from .serving import ScoringServer

_LOG = logging.getLogger(__name__)

_SILENT_SECONDS = 30.0
"""Limit for a silence of a client, before a request too; longer than a client of ours keeps an idle connection."""
_REST_SECONDS = 5.0
"""The same for the rest of a refused request, which is read and dropped."""
_LOOK_SECONDS = 0.5
"""Interval between looks whether the client of a waiting batch is still there."""
_BLOCK = 2**20
_FOLDERS = re.compile(r"(?<![\w:/])~?/(?:[^/\s'\"]+/)*(?=[^/\s])")
"""Folders of an absolute path; a URL has none."""


RETRY = {"Retry-After": "1"}
"""Header of a refusal after which a client asks again."""


class RefusedRequestError(Exception):
    """A request is not answered, and why."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


class RequestHandler(BaseHTTPRequestHandler):
    """Answers the requests of a connection."""

    server: ScoringServer
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # 0.9, http.server's own, has no status

    timeout = _SILENT_SECONDS

    def setup(self) -> None:
        """Send the body of an answer at once: it could wait for 40 ms."""
        super().setup()
        if self.connection.family != socket.AF_UNIX:
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

    def do_GET(self) -> None:
        """Answer a GET."""
        self._answer()

    def do_POST(self) -> None:
        """Answer a POST."""
        self._answer()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a head that http.server does not accept."""
        del code, explain
        self._refuse(RefusedRequestError(400, message or "malformed request"))

    def log_message(self, *arguments: object) -> None:
        """Log no requests."""

    def version_string(self) -> str:
        """Name of the server, without its Python."""
        return "chunk-grpo"

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        try:
            self._authorize()
            if (self.command, path) == ("GET", "/health"):
                self._send(200, {**self.server.about(), **self.server.state()})
            elif (self.command, path) == ("POST", "/score"):
                self._score()
            else:
                raise RefusedRequestError(
                    405 if path in ("/health", "/score") else 404, "there are GET /health and POST /score"
                )
        except RefusedRequestError as refusal:
            self._refuse(refusal)

    def _authorize(self) -> None:
        token, hosts = self.server.limits.token, self.headers.get_all("Host", [])
        host = hosts[0] if len(hosts) == 1 else ""
        if token is None and not _names_loopback(host):  # a page of a browser: DNS rebinding
            raise RefusedRequestError(
                400, f"without a token the host must be a loopback address such as 127.0.0.1, got {host[:80]!r}"
            )
        given = self.headers.get("Authorization", "").encode("utf-8")
        if token and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise RefusedRequestError(401, "the token is missing or wrong", {"WWW-Authenticate": "Bearer"})

    def _score(self) -> None:
        self.server.about()
        self.server.count(batches=1)
        body = bytearray()
        held = 0
        try:
            for part in self._parts():
                self.server.count(size=len(part))
                held += len(part)
                body += part
            try:
                batch = read_batch(read_message(body))
            except MalformedError as error:
                raise RefusedRequestError(400, str(error)) from error
            del body
            answer = self.server.submit(batch)
            while not wait([answer], _LOOK_SECONDS).done:
                if self._has_left():
                    answer.cancel()
                    raise ConnectionResetError("the client left")
            failure = answer.exception()
            if failure is None:
                self._send(200, answer.result())
            else:  # the client raises it
                self._send(500, self._told(failure, batch.id))
        finally:
            self.server.count(batches=-1, size=-held)

    def _parts(self) -> Iterator[bytes]:
        """Parts of a body, for which there is room. A client that announces a body and sends nothing holds nothing."""
        sizes, most = self.headers.get_all("Content-Length", []), self.server.limits.most_bytes
        if len(sizes) != 1 or not sizes[0].isdecimal() or "Transfer-Encoding" in self.headers:
            raise RefusedRequestError(411, "the request must have a Content-Length")
        left = int(sizes[0][:20])  # longer numbers are too large all the same
        if left > most:
            raise RefusedRequestError(413, f"the body must have at most {most} bytes, got {left}")
        self.server.require_room(left)
        try:
            while left:
                part = self.rfile.read1(min(left, _BLOCK))
                if not part:
                    raise ConnectionResetError("the client left")
                yield part
                left -= len(part)
        except TimeoutError:
            raise RefusedRequestError(
                408, f"the body must arrive without pauses above {_SILENT_SECONDS:g} s", RETRY
            ) from None

    def _has_left(self) -> bool:
        self.connection.settimeout(0)
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def _told(self, error: BaseException, question: str) -> Mapping[str, Any]:
        """Error message for the client. Only the stage that started the process gets traceback and folders."""
        message = error_message(error, question)
        if self.server.is_private:
            return message
        if message["kind"] not in KINDS:
            _LOG.error("the scorer failed", exc_info=error)
        del message["traceback"]
        return message | {"message": _FOLDERS.sub("", str(error))}

    def _refuse(self, refusal: RefusedRequestError) -> None:
        """Refuse a request and close its connection."""
        self.close_connection = True
        headers = {**refusal.headers, "Connection": "close"}
        self._send(refusal.status, {"type": "refused", "message": str(refusal)}, headers)
        # Closing a connection with unread bytes would take the answer away from the client.
        self.connection.settimeout(_REST_SECONDS)
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while self.rfile.read1(_BLOCK):
                pass

    def _send(self, status: int, message: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        content = write_message(message)
        self.connection.settimeout(self.timeout)
        self.send_response(status)
        about = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}
        for name, value in about.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def is_loopback(host: str) -> bool:
    """Whether an address or host name is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a host name
        return False


def _names_loopback(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
