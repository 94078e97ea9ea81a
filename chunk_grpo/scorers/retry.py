"""A scorer that gives no answer is asked again, and then ends the stage; its silence is never a score of 0."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from chunk_grpo.errors import TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scorer, Scores
from chunk_grpo.scorers.limited import TimeLimitError
from chunk_grpo.scorers.transient import may_pass

_LOG = logging.getLogger(__name__)

ATTEMPTS = 3
"""Of a batch, in evaluation; training has `train.reward_attempts`."""

WAIT_SECONDS = 2.0
"""Between the first failure and the second attempt, in evaluation; training has `train.reward_wait`."""


def score_with_retries(
    name: str,
    scorer: Scorer,
    batch: ScoreBatch,
    attempts: int = ATTEMPTS,
    wait_seconds: float = WAIT_SECONDS,
    sleep: Callable[[float], object] = time.sleep,
) -> Scores:
    """Score a batch; try again after failures that `may_pass`, and wait twice as long after each of them.

    DataError, ConfigError and errors of the program are raised at once: another try would end like the first. So is
    TimeLimitError: the call that took too long still runs.

    Args:
        name: The scorer's in params.yaml, for messages.
        scorer: What scores.
        batch: B images.
        attempts: How often to try in all, at least 1.
        wait_seconds: Seconds between the first failure and the second attempt, at least 0; then 2x, 4x and so on.
        sleep: Waits that many seconds; tests give one of their own.

    Returns:
        The scorer's answer as it is; `check_scores` judges it.

    Raises:
        TransientError: The last attempt failed too. The process ends with exit code 75 and can be run again.
        ValueError: `attempts` or `wait_seconds` is out of range.
    """
    if attempts < 1:
        raise ValueError(f"attempts: must be at least 1, got {attempts}")
    if not (math.isfinite(wait_seconds) and wait_seconds >= 0):
        raise ValueError(f"wait_seconds: must be finite and at least 0, got {wait_seconds}")
    for attempt in range(1, attempts):
        try:
            return scorer.score(batch)
        except Exception as error:
            _raise_what_lasts(name, error)
            wait = wait_seconds * 2 ** (attempt - 1)
            _LOG.warning(
                "scorer %s: attempt %d of %d failed (%s); the next follows in %g s",
                name,
                attempt,
                attempts,
                _reason(error),
                wait,
            )
            sleep(wait)
    try:
        return scorer.score(batch)
    except Exception as error:
        _raise_what_lasts(name, error)
        tried = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        raise TransientError(
            f"scorer {name}: no answer after {tried}; the last failed with {_reason(error)}. "
            "No score was made up. Run the same command again when the scorer answers: what is done is kept."
        ) from error


def _raise_what_lasts(name: str, error: Exception) -> None:
    """Raise the error that is being handled, unless another try may mend it; the log names the scorer."""
    if isinstance(error, TimeLimitError):
        raise error
    if not may_pass(error):
        _LOG.error("scorer %s failed with %s", name, type(error).__name__)
        raise error


def _reason(error: BaseException) -> str:
    """The error's type and words; some errors of the network have no words."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
