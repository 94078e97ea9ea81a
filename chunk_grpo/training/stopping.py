"""Stop requests during training, checked before each evaluation of the policy."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from chunk_grpo.families.base import Conditioning, VelocityModel

Check = Callable[[], None]
"""Callback that raises when a stop was requested."""


GIVE_UP_SECONDS = 5.0
"""Seconds to wait for a batch in scoring after a stop request; then the scoring thread is abandoned."""


class GivenUpError(Exception):
    """A stop was requested: the work in progress is aborted, and the process ends with exit code 75."""


def seconds_to_end(error: BaseException | None) -> float | None:
    """Seconds to wait for a background thread after `error`; None: no limit.

    The limit is `GIVE_UP_SECONDS` after a stop request. Without an error, or after a failure, there is none.
    """
    failed = isinstance(error, Exception) and not isinstance(error, GivenUpError)
    return None if error is None or failed else GIVE_UP_SECONDS


def never() -> None:
    """Never stops."""


class Stoppable:
    """A model that calls `check` before each evaluation."""

    def __init__(self, model: VelocityModel, check: Check) -> None:
        self._model, self._check = model, check

    def velocity(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        """Velocity [B, L, D] at the states x [B, L, D] and noise levels t [B]."""
        self._check()
        return self._model.velocity(x, t, conditioning)
