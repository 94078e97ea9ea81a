"""A scorer at a server (`python -m chunk_grpo.scorers.serve NAME`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import httpx

from chunk_grpo.config.scorers import AnyScorer, OverHttp
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers.executors.access import is_loopback, read_token
from chunk_grpo.scorers.executors.remote import Remote, check_identity
from chunk_grpo.scorers.executors.wire import Identity, Question, read_identity
from chunk_grpo.scorers.workers.lines import MalformedError, read_message

_POLL_SECONDS = 0.5  # while a server loads
_CONNECT_SECONDS = 10.0
_KEEP_SECONDS = (
    4.0  # keep-alive of idle connections; less than the server's, so that no closing one is reused
)


class HttpScorer(Remote):
    """Client of a scoring server.

    If the server's queue is full, requests are retried until `timeout_seconds` have passed. Proxy variables of the
    environment apply only to other machines, not to loopback.
    """

    def __init__(self, key: str, settings: AnyScorer, executor: OverHttp) -> None:
        """Contact nothing yet.

        Args:
            key: Name of the scorer in params.yaml.
            settings: The scorer's section.
            executor: URL, token variable and timeout of the server.
        """
        super().__init__(key, settings)
        self.executor = executor
        self._url = executor.url.rstrip("/")
        self._client: httpx.Client | None = None
        self._identity: Identity | None = None
        self._most_bytes: int | None = None
        self._lock = threading.RLock()

    @property
    def who(self) -> str:
        """Name of the server, for messages."""
        return f"scorer {self.key}: the server at {self._url}"

    def identity(self) -> Identity:
        """Identity of the server's scorer; waits until the server is ready.

        Raises:
            ConfigError: The token is missing or wrong.
            DataError: The server runs another scorer than the settings, or is no scoring server.
            TransientError: The server does not answer, or is still loading.
        """
        with self._lock:
            if self._identity is None:
                message = self._until_ready()
                identity = read_identity(message, self.who)
                check_identity(self.key, self.settings, identity, self.who)
                most = message.get("most_bytes")
                self._most_bytes = most if isinstance(most, int) else None
                self._identity = identity
            return self._identity

    def ask(self, question: Question) -> Mapping[str, Any]:
        """Answer of the server; requests are retried while its queue is full.

        Raises:
            ConfigError: The token is wrong.
            DataError: The batch exceeds the server's size limit.
            TransientError: No answer in time.
        """
        size = len(question.line)
        if self._most_bytes is not None and size > self._most_bytes:
            raise DataError(
                f"{self.who} takes {self._most_bytes / 1e6:.1f} MB at a time, and {len(question.keys)} images make "
                f"{size / 1e6:.1f} MB: start it with a larger --most-megabytes, or score fewer images at a time"
            )
        deadline = time.monotonic() + self.executor.timeout_seconds
        while True:
            response = self._request("POST", "/score", deadline, question.line)
            wait = _retry_after(response)
            if wait is None:
                return self._message(response)
            if time.monotonic() + wait >= deadline:
                why = self._message(response).get("message")
                raise TransientError(f"{self.who} was busy for {self.executor.timeout_seconds:g} s: {why}")
            time.sleep(wait)

    def distrust(self) -> None:
        """Nothing to drop: each HTTP response belongs to its request."""

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    def _until_ready(self) -> dict[str, Any]:
        deadline = time.monotonic() + self.executor.timeout_seconds
        while True:
            message = self._message(self._request("GET", "/health", deadline))
            if message.get("state") != "loading":
                return message
            if time.monotonic() + _POLL_SECONDS >= deadline:
                raise TransientError(
                    f"{self.who} was still loading after {self.executor.timeout_seconds:g} s"
                )
            time.sleep(_POLL_SECONDS)

    def _request(
        self, method: str, path: str, deadline: float, content: bytes | None = None
    ) -> httpx.Response:
        left = max(deadline - time.monotonic(), 0.001)
        timeout = httpx.Timeout(left, connect=min(left, _CONNECT_SECONDS))
        try:
            return self._connected().request(method, self._url + path, content=content, timeout=timeout)
        except (httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: the host is no domain name
            raise ConfigError(
                f"executors.{self.key}.url: must be a URL, got {self.executor.url!r} ({error})"
            ) from error
        except httpx.TimeoutException as error:
            raise TransientError(
                f"{self.who} did not answer within {self.executor.timeout_seconds:g} s ({type(error).__name__})"
            ) from error
        except httpx.TransportError as error:
            raise TransientError(
                f"{self.who} does not answer ({type(error).__name__}: {error}). {self._how_to_start()}"
            ) from error

    def _connected(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                token = read_token(f"executors.{self.key}.token_variable", self.executor.token_variable)
                self._client = httpx.Client(
                    headers={"Authorization": f"Bearer {token}"} if token else {},
                    limits=httpx.Limits(keepalive_expiry=_KEEP_SECONDS),
                    trust_env=not is_loopback(httpx.URL(self._url).host),
                )
            return self._client

    def _message(self, response: httpx.Response) -> dict[str, Any]:
        if response.status_code == httpx.codes.UNAUTHORIZED:
            variable = self.executor.token_variable
            raise ConfigError(
                f"{self.who} asks for a token: name its environment variable in executors.{self.key}.token_variable"
                if variable is None
                else f"{self.who} refuses the token in {variable} (executors.{self.key}.token_variable)"
            )
        try:
            message = read_message(response.content)
        except MalformedError as error:
            if response.is_server_error:  # from a terminated server, or a proxy in front of it
                raise TransientError(f"{self.who} failed: status {response.status_code}") from error
            raise DataError(
                f"{self.who} is no scoring server: status {response.status_code}, {error}"
            ) from error
        if response.status_code == httpx.codes.REQUEST_TIMEOUT:
            raise TransientError(f"{self.who} gave up: {message.get('message')}")
        if message.get("type") == "refused" and _retry_after(response) is None:
            raise DataError(f"{self.who} refuses the request: {message.get('message')}")
        return message

    def _how_to_start(self) -> str:
        """Command that starts the server, with the token option that non-loopback hosts require."""
        url, variable = httpx.URL(self._url), self.executor.token_variable
        command, notes = f"python -m chunk_grpo.scorers.serve {self.key}", ""
        if url.scheme == "https":
            notes = (
                f"; the server speaks no TLS: a proxy at {self._url} must end that and pass the requests on to "
                "http://127.0.0.1:8901, where this command listens"
            )
        else:
            if not is_loopback(url.host):
                command += f" --host {url.host}"
                if variable is None:
                    variable = "VARIABLE"
                    notes = (
                        "; for other machines than its own it asks for a token: put a token into VARIABLE, on both "
                        f"machines, and name that in executors.{self.key}.token_variable too"
                    )
            command += f" --port {url.port or 80}"
        command += f" --token-variable {variable}" if variable else ""
        return f"Start it there: `{command}`{notes}"


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds to wait before the retry that a full server requests; None for any other answer."""
    text = response.headers.get("Retry-After", "")
    full = response.status_code == httpx.codes.SERVICE_UNAVAILABLE and text.isdigit()
    return float(text) if full else None
