"""A scorer at a server (`chunk-grpo serve-scorer NAME`)."""

from __future__ import annotations

from typing import Any

import httpx

from chunk_grpo.config.scorers import AnyScorer, OverHttp
from chunk_grpo.errors import ConfigError, TransientError
from chunk_grpo.scorers.executors.messages import Identity, read_identity, read_token
from chunk_grpo.scorers.executors.remote import Remote, check_identity
from chunk_grpo.scorers.workers.worker_protocol.requests import is_loopback

_KEEP_SECONDS = 4.0
"""Keep-alive of idle connections; less than the server's, so that no closing one is reused."""


class HttpScorer(Remote):
    """Client of a scoring server.

    While the server loads or its queue is full, requests are retried until `timeout_seconds` have passed. Proxy
    variables of the environment apply only to other machines, not to loopback.
    """

    def __init__(self, key: str, settings: AnyScorer, executor: OverHttp) -> None:
        """Contact nothing yet. ConfigError if the URL is malformed, or the token is not set."""
        super().__init__(key, settings)
        self.executor = executor
        token = read_token(f"executors.{key}.token_variable", executor.token_variable)
        try:
            self._client = httpx.Client(
                base_url=executor.url,
                headers={"Authorization": f"Bearer {token}"} if token else {},
                limits=httpx.Limits(keepalive_expiry=_KEEP_SECONDS),
                trust_env=not is_loopback(httpx.URL(executor.url).host),
            )
        except httpx.InvalidURL as error:
            raise self._no_url(error) from error

    @property
    def who(self) -> str:
        """Name of the server, for messages."""
        return f"scorer {self.key}: the server at {self.executor.url}"

    def contact(self) -> tuple[httpx.Client, Identity]:
        """Client and identity. At the first use it waits until the server is ready."""
        if self._identity is None:
            try:
                health = self.exchange(self._client, self.executor.timeout_seconds, "GET", "health")
            except UnicodeError as error:  # the host is no domain name
                raise self._no_url(error) from error
            identity = read_identity(health, self.who)
            check_identity(self.key, self.settings, identity, self.who)
            self._identity = identity
        return self._client, self._identity

    def next_limit(self) -> float:
        """Time limit of the next batch, in seconds."""
        return self.executor.timeout_seconds

    def no_answer(self, error: httpx.TransportError, seconds: float) -> TransientError:
        """Error for a server that is away or too slow; it names the command that starts one."""
        if isinstance(error, httpx.TimeoutException):
            return TransientError(f"{self.who} did not answer within {seconds:g} s ({type(error).__name__})")
        return TransientError(f"{self.who} does not answer ({type(error).__name__}: {error}). {self._how_to_start()}")

    def read(self, response: httpx.Response) -> dict[str, Any]:
        """Message in a response."""
        if response.status_code == httpx.codes.UNAUTHORIZED:
            variable = self.executor.token_variable
            raise ConfigError(
                f"{self.who} asks for a token: name its environment variable in executors.{self.key}.token_variable"
                if variable is None
                else f"{self.who} refuses the token in {variable} (executors.{self.key}.token_variable)"
            )
        return super().read(response)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _no_url(self, error: Exception) -> ConfigError:
        return ConfigError(f"executors.{self.key}.url: must be a URL, got {self.executor.url!r} ({error})")

    def _how_to_start(self) -> str:
        """Command that starts the server; for https it listens behind a proxy that ends TLS."""
        url, variable = httpx.URL(self.executor.url), self.executor.token_variable
        command = f"chunk-grpo serve-scorer {self.key}"
        if url.scheme == "http":
            if not is_loopback(url.host):
                command += f" --host {url.host}"
                variable = variable or "VARIABLE"
            command += f" --port {url.port or 80}"
        command += f" --token-variable {variable}" if variable else ""
        return f"Start it there: `{command}` (docs/own_scorers.md, Where it runs)"
