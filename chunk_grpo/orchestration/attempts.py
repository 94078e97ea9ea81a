"""Further attempts at a stage that failed for a reason that may pass, after growing pauses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from chunk_grpo.environment import STAGE_ATTEMPTS, whole_number
from chunk_grpo.errors import TransientError
from chunk_grpo.orchestration.commands import Log
from chunk_grpo.orchestration.outcomes import StageFailed

Value = TypeVar("Value")

TRY_AGAIN = TransientError.exit_code
"""Exit code of a stage that may succeed at another attempt: a server away, a training stopped at a checkpoint."""

_ATTEMPTS = 3
_FIRST_PAUSE, _GROWTH, _LONGEST_PAUSE = 15.0, 4.0, 600.0  # seconds


def pause_after(attempts: int) -> float:
    """Seconds between an attempt, counted from 1, and the next."""
    return float(min(_FIRST_PAUSE * _GROWTH ** (attempts - 1), _LONGEST_PAUSE))


def attempts_allowed(default: int = _ATTEMPTS) -> int:
    """Number of attempts at a stage, at least 1, from the environment; `default` without the variable."""
    return whole_number(STAGE_ATTEMPTS, default)


def attempted(
    run: Callable[[], Value],
    attempts: int,
    stopping: threading.Event,
    log: Log,
    paused: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Value:
    """Call a function that runs a stage, again after each exit code `TRY_AGAIN`, at most `attempts` (>= 1) times.

    The StageFailed of the last attempt, or with another exit code, is raised; `log` receives the others. `stopping`
    ends the pauses, with no further attempt; `paused` makes the context of each.
    """
    for number in range(1, attempts):
        try:
            return run()
        except StageFailed as error:
            if error.exit_code != TRY_AGAIN or stopping.is_set():
                raise
            pause = pause_after(number)
            log(f"{error}\nAttempt {number + 1} of {attempts} at {error.stage} follows in {pause:.0f} s.")
            with paused():
                ends = stopping.wait(pause)
            if ends:
                raise
    return run()
