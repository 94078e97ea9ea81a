"""A scorer in the process of the stage, with a limit for the time that it takes."""

from __future__ import annotations

from concurrent.futures import wait

from chunk_grpo.config.scorers import ScorerSettings
from chunk_grpo.errors import TransientError
from chunk_grpo.scorers.background import Background
from chunk_grpo.scorers.base import Need, ScoreBatch, Scorer, Scores


class TimeLimitError(TransientError):
    """A scorer took too long and still does: it cannot be asked again in this process."""


class Limited:
    """A scorer whose calls run in a thread of their own, so that the stage can give one up.

    Attributes:
        scorer: The one that is called.
    """

    def __init__(self, key: str, scorer: Scorer, seconds: float) -> None:
        """Start nothing yet.

        Args:
            key: The scorer's name in params.yaml, for messages.
            scorer: In this process.
            seconds: For a call of `score`, with the time to load a model.
        """
        self.scorer = scorer
        self._key, self._seconds = key, seconds
        self._thread: Background | None = None
        self._given_up = False

    @property
    def settings(self) -> ScorerSettings:
        """The scorer's."""
        return self.scorer.settings

    @property
    def name(self) -> str:
        """The scorer's."""
        return self.scorer.name

    @property
    def version(self) -> int:
        """The scorer's."""
        return self.scorer.version

    @property
    def needs(self) -> frozenset[Need]:
        """The scorer's."""
        return self.scorer.needs

    @property
    def groupwise(self) -> bool:
        """The scorer's."""
        return self.scorer.groupwise

    def check(self) -> None:
        """As the scorer's, without a limit: it may download models."""
        self.scorer.check()

    def spec_hash(self) -> str:
        """The scorer's."""
        return self.scorer.spec_hash()

    def score(self, batch: ScoreBatch) -> Scores:
        """As the scorer's.

        Raises:
            TimeLimitError: It took too long.
        """
        if self._given_up:
            raise self._too_long()
        if self._thread is None:
            self._thread = Background(f"scorer {self._key}")
        answer = self._thread.submit(self.scorer.score, batch)
        try:
            wait([answer], self._seconds)
        finally:  # a signal may end the wait too
            if not answer.done():
                self._given_up = True
                self._thread.end(seconds=0)
        if self._given_up:
            raise self._too_long()
        return answer.result()

    def close(self) -> None:
        """As the scorer's, unless a call still runs in it."""
        if self._given_up:
            return
        if self._thread is not None:
            self._thread.end()
        self.scorer.close()

    def _too_long(self) -> TimeLimitError:
        return TimeLimitError(
            f"scorer {self._key}: no answer within {self._seconds:g} s (executors.{self._key}.timeout_seconds), and "
            "the call still runs, so the stage ends. No score was made up; what is done is kept. Run the same command "
            "again, with a longer limit if the scorer needs it: "
            f"executors: {{{self._key}: {{kind: in-process, device: null, timeout_seconds: ...}}}}"
        )
