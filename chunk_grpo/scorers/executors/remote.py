"""Base of scorers in other processes: identity check, batching, and validation of answers."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from chunk_grpo.config.scorers import AnyScorer, ExternalScorer
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.scorers.base import Need, ScoreBatch, Scores, check_batch, check_scores
from chunk_grpo.scorers.executors.messages import Identity, encode_batch, raise_remote_error, read_scores
from chunk_grpo.scorers.running.configured import joined
from chunk_grpo.scorers.running.fingerprint import scoring_settings
from chunk_grpo.scorers.running.registry import make_scorer


class Remote(ABC):
    """A scorer in another process with the interface of a local one; for one thread at a time.

    The remote process reports `name`, `version`, `needs`, `groupwise` and `spec_hash` at the first use.
    """

    def __init__(self, key: str, settings: AnyScorer) -> None:
        """Contact nothing yet.

        Args:
            key: Name of the scorer in params.yaml.
            settings: The scorer's section.
        """
        self.key, self.settings = key, settings

    @property
    @abstractmethod
    def who(self) -> str:
        """Name of the remote process, for messages."""

    @abstractmethod
    def identity(self) -> Identity:
        """Identity of the remote scorer, requested at the first use and then cached.

        Raises:
            ConfigError: The settings do not allow to start or contact it.
            DataError: It is another scorer, or a file is missing there.
            TransientError: No answer; a retry may succeed.
        """

    @abstractmethod
    def ask(self, message: bytes) -> Mapping[str, Any]:
        """Send a batch and return the answer, unchecked.

        Raises:
            TransientError: No answer; a retry may succeed.
        """

    def distrust(self) -> None:
        """Drop the connection after an unexpected answer. Nothing to do if an answer belongs to its request."""
        return

    @abstractmethod
    def close(self) -> None:
        """Release processes and connections. The scorer must not be used afterwards."""

    @property
    def name(self) -> str:
        """Name that the remote scorer reports."""
        return self.identity().name

    @property
    def version(self) -> int:
        """Version that the remote scorer reports."""
        return self.identity().version

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs besides the images that the remote scorer reports."""
        return self.identity().needs

    @property
    def groupwise(self) -> bool:
        """Whether the remote scorer reports that it is groupwise."""
        return self.identity().groupwise

    def check(self) -> None:
        """Contact the remote scorer, which checks its packages and files. Loads no model.

        Raises:
            ConfigError: A package is missing there, or the settings do not allow to start or contact it.
            DataError: A file is missing there, or it is another scorer.
            TransientError: No answer.
        """
        self.identity()

    def spec_hash(self) -> str:
        """Spec hash that the remote scorer reports: its model's folder may be elsewhere."""
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

    def _score(self, batch: ScoreBatch) -> Scores:
        identity, question = self.identity(), uuid.uuid4().hex
        message = self.ask(encode_batch(batch, question))
        raise_remote_error(message, self.who)
        try:
            scores = read_scores(message, question, len(batch), identity.spec_hash, self.who)
        except DataError:
            self.distrust()
            raise
        return check_scores(identity.name, scores, batch.prompts)


def check_identity(key: str, settings: AnyScorer, identity: Identity, who: str) -> None:
    """Check that a remote scorer is the one of `settings`.

    Raises:
        DataError: Name, version or a setting differs.
    """
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
