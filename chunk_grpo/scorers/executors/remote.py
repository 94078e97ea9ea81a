"""What scorers in other processes share: who answers there, and that only answers to what was asked are used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from chunk_grpo.config.scorers import AnyScorer, ExternalScorer
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.scorers.base import Need, ScoreBatch, Scores, check_batch, check_scores
from chunk_grpo.scorers.configured import joined
from chunk_grpo.scorers.executors.wire import Identity, Question, encode_batch, raise_told, read_scores
from chunk_grpo.scorers.identity import measured
from chunk_grpo.scorers.registry import make_scorer


class Remote(ABC):
    """A scorer in another process, behind the same protocol as one in this process.

    What it is (`name`, `version`, `needs`, `groupwise`, `spec_hash`) the other side says, at the first use.
    """

    def __init__(self, key: str, settings: AnyScorer) -> None:
        """Reach nothing yet.

        Args:
            key: The scorer's name in params.yaml.
            settings: Its section.
        """
        self.key, self.settings = key, settings

    @property
    @abstractmethod
    def who(self) -> str:
        """The other side, for messages."""

    @abstractmethod
    def identity(self) -> Identity:
        """What the other side is, asked for at the first use and then remembered.

        Raises:
            ConfigError: It cannot be started or asked like this.
            DataError: It is another one, or a file is missing there.
            TransientError: No answer; another try may get one.
        """

    @abstractmethod
    def ask(self, question: Question) -> Mapping[str, Any]:
        """The answer to a question, as it came.

        Raises:
            TransientError: No answer; another try may get one.
        """

    @abstractmethod
    def distrust(self) -> None:
        """It answered what was not asked: do not read on from it."""

    @abstractmethod
    def close(self) -> None:
        """Give back processes and connections; the scorer is not used after it."""

    @property
    def name(self) -> str:
        """As the other side says."""
        return self.identity().name

    @property
    def version(self) -> int:
        """As the other side says."""
        return self.identity().version

    @property
    def needs(self) -> frozenset[Need]:
        """As the other side says."""
        return self.identity().needs

    @property
    def groupwise(self) -> bool:
        """As the other side says."""
        return self.identity().groupwise

    def check(self) -> None:
        """Reach the other side, which finds its packages and files; no model is loaded.

        Raises:
            ConfigError: A package is missing there, or it cannot be started or asked like this.
            DataError: A file is missing there, or it is another scorer.
            TransientError: No answer.
        """
        self.identity()

    def spec_hash(self) -> str:
        """The other side's: its model's folder may lie elsewhere."""
        return self.identity().spec_hash

    def score(self, batch: ScoreBatch) -> Scores:
        """Score a batch of any size, `batch_size` images a message, or, of a groupwise scorer, all in one.

        Raises:
            DataError: An input cannot be judged, or the answer is not one to this batch.
            TransientError: No answer; another try may get one.
            WorkerError: The scorer has a bug.
        """
        check_batch(batch)
        size = max(len(batch), 1) if self.groupwise else self.settings.batch_size
        starts = range(0, max(len(batch), 1), size)
        return joined([self._score(batch.rows(range(n, min(n + size, len(batch))))) for n in starts])

    def _score(self, batch: ScoreBatch) -> Scores:
        identity = self.identity()
        question = encode_batch(batch)
        message = self.ask(question)
        raise_told(message, self.who)
        try:
            scores = read_scores(message, question, identity.spec_hash, self.who)
        except DataError:
            self.distrust()
            raise
        return check_scores(identity.name, scores, batch.prompts)


def check_identity(key: str, settings: AnyScorer, identity: Identity, who: str) -> None:
    """Refuse another scorer than `settings` asks for.

    Raises:
        DataError: Another name, version or setting.
    """
    expected = _expected(key, settings)
    if expected is not None and (identity.name, identity.version) != expected:
        name, version = expected
        raise DataError(
            f"scorers.{key}: must be {name} (version {version}), but {who} is {identity.name} (version "
            f"{identity.version}; {identity.software}). Give both the same section and the same version of chunk-grpo."
        )
    asked = measured(settings)
    for name in asked.keys() & identity.measured.keys():  # one side may have in a folder what the other names
        if asked[name] != identity.measured[name]:
            raise DataError(
                f"scorers.{key}.{name}: is {asked[name]!r} here, but {identity.measured[name]!r} for {who}. Give both "
                "the same section of scorers."
            )


def _expected(key: str, settings: AnyScorer) -> tuple[str, int] | None:
    """Name and version by the settings; None if the scorer's packages are not installed in this process's Python."""
    if isinstance(settings, ExternalScorer):
        return key, settings.version
    try:
        scorer = make_scorer(key, settings)
    except ConfigError as error:
        if isinstance(error.__cause__, ImportError):  # a reason to run it elsewhere
            return None
        raise
    return scorer.name, scorer.version
