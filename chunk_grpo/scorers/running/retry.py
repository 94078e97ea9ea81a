"""Retries of a failing scorer. The last failure ends the stage; it never counts as a score of 0."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from chunk_grpo.errors import TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scorer, Scores
from chunk_grpo.scorers.running.limited import TimeLimitError
from chunk_grpo.scorers.running.transient import may_pass

_LOG = logging.getLogger(__name__)

ATTEMPTS = 3
"""Attempts per batch in evaluation. Training uses `train.reward_attempts`."""

WAIT_SECONDS = 2.0
"""Wait before the second attempt in evaluation. Training uses `train.reward_wait`."""


def score_with_retries(
    name: str,
    scorer: Scorer,
    batch: ScoreBatch,
    attempts: int = ATTEMPTS,
    wait_seconds: float = WAIT_SECONDS,
    sleep: Callable[[float], object] = time.sleep,
) -> Scores:
    """Score a batch; retry failures that `may_pass` accepts, with doubled waits.

    DataError, ConfigError and program errors are raised at once: a retry would fail alike. So is TimeLimitError: the
    call that took too long still runs.

    Args:
        name: Name of the scorer in params.yaml, for messages.
        scorer: Scorer to call.
        batch: B images.
        attempts: Total number of attempts, at least 1.
        wait_seconds: Seconds between the first failure and the second attempt, at least 0; doubles with each attempt.
        sleep: Function that waits the given seconds; tests replace it.

    Returns:
        The scorer's answer, not checked by `check_scores`.

    Raises:
        TransientError: The last attempt failed. The process ends with exit code 75; the command can be rerun.
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
    """Raise the error being handled, unless a retry may succeed. The log names the scorer."""
    if isinstance(error, TimeLimitError):
        raise error
    if not may_pass(error):
        _LOG.error("scorer %s failed with %s", name, type(error).__name__)
        raise error


def _reason(error: BaseException) -> str:
    """Type and message of the error; some network errors have no message."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
