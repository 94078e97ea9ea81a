"""Base of scorers in other processes: requests to their server, identity check, batching, and validation of answers."""

from __future__ import annotations

import io
import time
import uuid
from abc import ABC, abstractmethod
from typing import Any

import httpx
import numpy as np

from chunk_grpo.config.scorers import AnyScorer, ExternalScorer
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers.base import Need, ScoreBatch, Scores, check_batch, check_scores
from chunk_grpo.scorers.executors.messages import Identity, encode_batch, raise_remote_error, read_scores
from chunk_grpo.scorers.running.configured import joined
from chunk_grpo.scorers.running.fingerprint import scoring_settings
from chunk_grpo.scorers.running.registry import make_scorer
from chunk_grpo.scorers.workers.worker_protocol.messages import MalformedError, read_message

_CONNECT_SECONDS = 10.0


class Remote(ABC):
    """A scorer behind a server, with the interface of a local one; for one thread at a time.

    The server reports `name`, `version`, `needs`, `groupwise` and `spec_hash` at the first use.
    """

    def __init__(self, key: str, settings: AnyScorer) -> None:
        """Contact nothing yet."""
        self.key, self.settings = key, settings
        self._identity: Identity | None = None

    @property
    @abstractmethod
    def who(self) -> str:
        """Name of the server, for messages."""

    @abstractmethod
    def contact(self) -> tuple[httpx.Client, Identity]:
        """Client of a server that runs the scorer, and its identity.

        Raises:
            ConfigError: The settings do not allow to start or contact it.
            DataError: It is another scorer, or a file is missing there.
            TransientError: No answer; a retry may succeed.
        """

    @abstractmethod
    def next_limit(self) -> float:
        """Time limit of the next batch, in seconds."""

    @abstractmethod
    def no_answer(self, error: httpx.TransportError, seconds: float) -> Exception:
        """Error to raise for a request that failed within its `seconds`, or exceeded them."""

    @abstractmethod
    def close(self) -> None:
        """Release processes and connections. The scorer must not be used afterwards."""

    def identity(self) -> Identity:
        """Identity of the server's scorer, requested at the first use and then cached."""
        return self._identity or self.contact()[1]

    @property
    def name(self) -> str:
        """Name that the server reports."""
        return self.identity().name

    @property
    def version(self) -> int:
        """Version that the server reports."""
        return self.identity().version

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs besides the images that the server reports."""
        return self.identity().needs

    @property
    def groupwise(self) -> bool:
        """Whether the server reports that its scorer is groupwise."""
        return self.identity().groupwise

    def check(self) -> None:
        """Contact the server, which checks the scorer's packages and files. Errors are those of `contact`."""
        self.identity()

    def spec_hash(self) -> str:
        """Spec hash that the server reports: its model's folder may be elsewhere."""
        return self.identity().spec_hash

    def score(self, batch: ScoreBatch) -> Scores:
        """Score a batch of any size with `batch_size` images per message; a groupwise scorer gets all in one.

        Raises:
            DataError: An input cannot be judged, or the answer does not belong to this batch.
            TransientError: No answer; a retry may succeed.
            WorkerError: The scorer has a bug.
        """
        check_batch(batch)
        if not len(batch):
            self.identity()
            return Scores(np.empty(0))
        size = len(batch) if self.groupwise else self.settings.batch_size
        starts = range(0, len(batch), size)
        return joined([self._score(batch.rows(range(n, min(n + size, len(batch))))) for n in starts])

    def exchange(
        self, client: httpx.Client, seconds: float, method: str, path: str, content: bytes | None = None
    ) -> dict[str, Any]:
        """Answer to a request, which is repeated while the server says that it is busy, for `seconds` in all.

        Raises:
            DataError: The server refuses the request, or is no scoring server.
            TransientError: No answer in time.
        """
        deadline = time.monotonic() + seconds
        while True:
            left = max(deadline - time.monotonic(), 0.001)
            timeout = httpx.Timeout(left, connect=min(left, _CONNECT_SECONDS))
            # As a file: httpcore copies what is left of a body's part with each call of the system.
            body = None if content is None else io.BytesIO(content)
            try:
                response = client.request(method, path, content=body, timeout=timeout)
            except httpx.TransportError as error:
                raise self.no_answer(error, seconds) from error
            message, wait = self.read(response), response.headers.get("Retry-After")
            if message.get("type") != "refused":
                return message
            if wait is None:
                raise DataError(f"{self.who} refuses the request: {message.get('message')}")
            if time.monotonic() + float(wait) >= deadline:
                raise TransientError(f"{self.who} was busy for {seconds:g} s: {message.get('message')}")
            time.sleep(float(wait))

    def read(self, response: httpx.Response) -> dict[str, Any]:
        """Message in a response.

        Raises:
            DataError: There is none; no scoring server has answered.
            TransientError: There is none; the server has failed.
        """
        try:
            return read_message(response.content)
        except MalformedError as error:
            if response.is_server_error:  # from a terminated server, or a proxy in front of it
                raise TransientError(f"{self.who} failed: status {response.status_code}") from error
            raise DataError(f"{self.who} is no scoring server: status {response.status_code}, {error}") from error

    def _score(self, batch: ScoreBatch) -> Scores:
        (client, identity), question = self.contact(), uuid.uuid4().hex
        content = encode_batch(batch, question)
        if len(content) > identity.most_bytes:
            raise DataError(
                f"{self.who} takes {identity.most_bytes / 1e6:.1f} MB at a time, and a batch makes "
                f"{len(content) / 1e6:.1f} MB: start it with a larger --most-megabytes, or score fewer images at a time"
            )
        message = self.exchange(client, self.next_limit(), "POST", "score", content)
        raise_remote_error(message, self.who)
        scores = read_scores(message, question, len(batch), identity.spec_hash, self.who)
        return check_scores(identity.name, scores, batch.prompts)


def check_identity(key: str, settings: AnyScorer, identity: Identity, who: str) -> None:
    """Check that a remote scorer is the one of `settings`; DataError if name, version or a setting differs."""
    expected = _expected(key, settings)
    if expected is not None and (identity.name, identity.version) != expected:
        name, version = expected
        raise DataError(
            f"scorers.{key}: must be {name} (version {version}), but {who} is {identity.name} (version "
            f"{identity.version}; {identity.software}). Use the same section and version of chunk-grpo for both."
        )
    wanted = scoring_settings(settings)
    for name in wanted.keys() & identity.measured.keys():  # `scoring_settings` omits models in local folders
        if wanted[name] != identity.measured[name]:
            raise DataError(
                f"scorers.{key}.{name}: is {wanted[name]!r} here, but {identity.measured[name]!r} for {who}. Use the "
                "same section of scorers for both."
            )


def _expected(key: str, settings: AnyScorer) -> tuple[str, int] | None:
    """Name and version by the settings; None if this interpreter lacks the scorer's packages."""
    if isinstance(settings, ExternalScorer):
        return key, settings.version
    try:
        scorer = make_scorer(key, settings)
    except ConfigError as error:
        if isinstance(error.__cause__, ImportError):  # missing packages are a reason to run it elsewhere
            return None
        raise
    return scorer.name, scorer.version
