"""Where training looks whether somebody wants it to end: before each evaluation of the policy."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from chunk_grpo.families.base import Conditioning, VelocityModel

Check = Callable[[], None]
"""A look at the stop request; it raises to have the work in hand given up."""


GIVE_UP_SECONDS = 5.0
"""For a batch that is being scored when its result is no longer wanted; a scorer that hangs takes longer."""


class GivenUpError(Exception):
    """Somebody wants the process to end: work in hand is given up, and the process ends with exit code 75."""


def seconds_to_end(error: BaseException | None) -> float | None:
    """How long to wait for what runs beside the work that an error ended; None: for as long as it takes."""
    failed = isinstance(error, Exception) and not isinstance(error, GivenUpError)
    return None if error is None or failed else GIVE_UP_SECONDS


def never() -> None:
    """The look of somebody who goes on."""


class Stoppable:
    """A model that looks at the stop request before each evaluation."""

    def __init__(self, model: VelocityModel, check: Check) -> None:
        self._model, self._check = model, check

    def velocity(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        """The model's velocity [B, L, D] at the states x [B, L, D] and noise levels t [B]."""
        self._check()
        return self._model.velocity(x, t, conditioning)
