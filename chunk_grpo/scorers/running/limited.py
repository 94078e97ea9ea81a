"""A scorer in the stage's process, with a time limit per call."""

from __future__ import annotations

from concurrent.futures import wait

from chunk_grpo.config.scorer_settings import ScorerSettings
from chunk_grpo.errors import TransientError
from chunk_grpo.scorers.base import Need, ScoreBatch, Scorer, Scores
from chunk_grpo.scorers.running.background import Background


class TimeLimitError(TransientError):
    """A scorer exceeded its time limit and still runs. It cannot be called again in this process."""


class Limited:
    """Runs a scorer's calls in a separate thread, so that the stage can abandon a call.

    Attributes:
        scorer: The wrapped scorer.
    """

    def __init__(self, key: str, scorer: Scorer, seconds: float) -> None:
        """Start no thread yet.

        Args:
            key: Name of the scorer in params.yaml, for messages.
            scorer: Scorer in this process.
            seconds: Time limit of a `score` call, including loading the model.
        """
        self.scorer = scorer
        self._key, self._seconds = key, seconds
        self._thread: Background | None = None
        self._given_up = False

    @property
    def settings(self) -> ScorerSettings:
        """Settings of the wrapped scorer."""
        return self.scorer.settings

    @property
    def name(self) -> str:
        """Name of the wrapped scorer."""
        return self.scorer.name

    @property
    def version(self) -> int:
        """Version of the wrapped scorer."""
        return self.scorer.version

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs of the wrapped scorer besides the images."""
        return self.scorer.needs

    @property
    def groupwise(self) -> bool:
        """Whether the wrapped scorer is groupwise."""
        return self.scorer.groupwise

    def check(self) -> None:
        """Check the wrapped scorer, without a time limit: it may download models."""
        self.scorer.check()

    def spec_hash(self) -> str:
        """Hash of the wrapped scorer's version, settings and model files."""
        return self.scorer.spec_hash()

    def score(self, batch: ScoreBatch) -> Scores:
        """Score a batch with the wrapped scorer.

        Raises:
            TimeLimitError: The call exceeded the limit.
        """
        if self._given_up:
            raise self._too_long()
        if self._thread is None:
            self._thread = Background(f"scorer {self._key}")
        answer = self._thread.submit(self.scorer.score, batch)
        try:
            wait([answer], self._seconds)
        finally:  # a signal also ends the wait
            if not answer.done():
                self._given_up = True
                self._thread.end(seconds=0)
        if self._given_up:
            raise self._too_long()
        return answer.result()

    def close(self) -> None:
        """Close the wrapped scorer, unless an abandoned call still runs."""
        if self._given_up:
            return
        if self._thread is not None:
            self._thread.end()
        self.scorer.close()

    def _too_long(self) -> TimeLimitError:
        return TimeLimitError(
            f"scorer {self._key}: no answer within {self._seconds:g} s (executors.{self._key}.timeout_seconds), and "
            "the call still runs, so the stage ends. No score was made up; what is done is kept. Rerun the same "
            "command, with a longer limit if the scorer needs it: "
            f"executors: {{{self._key}: {{kind: in-process, device: null, timeout_seconds: ...}}}}"
        )
