"""A scorer that gives no answer is asked again, and then stops training; its silence is never a reward of 0."""

from __future__ import annotations

import errno
import logging
import math
import time
from collections.abc import Callable

from chunk_grpo.errors import TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scorer, Scores

_LOG = logging.getLogger(__name__)

_OF_THE_NETWORK = {"ConnectionError", "TimeoutError", "gaierror", "URLError", "RequestException"}
"""By name: requests, whose errors are OSErrors too, need not be installed."""

_MAY_PASS = {errno.EAGAIN, errno.EHOSTUNREACH, errno.EIO, errno.ENETDOWN, errno.ENETUNREACH, errno.ESTALE}
"""Of the operating system: the network, or a file system behind one, is away."""


def may_pass(error: Exception) -> bool:
    """Whether another try may end otherwise: not when a file is missing or must not be read.

    `workers.lines.error_message` judges alike in another process.
    """
    if isinstance(error, TransientError):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, OSError) and (bool(names & _OF_THE_NETWORK) or error.errno in _MAY_PASS)


def score_with_retries(
    name: str,
    scorer: Scorer,
    batch: ScoreBatch,
    attempts: int,
    wait_seconds: float,
    sleep: Callable[[float], object] = time.sleep,
) -> Scores:
    """Score a batch; try again after failures that `may_pass`, and wait twice as long after each of them.

    DataError, ConfigError and errors of the program are raised at once: another try would end like the first.

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
            if not may_pass(error):
                raise
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
        if not may_pass(error):
            raise
        tried = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        raise TransientError(
            f"scorer {name}: no answer after {tried}; the last failed with {_reason(error)}. "
            "No reward was made up. Run the same command again when the scorer answers: training goes on from its "
            "last checkpoint."
        ) from error


def _reason(error: BaseException) -> str:
    """The error's type and words; some errors of the network have no words."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
