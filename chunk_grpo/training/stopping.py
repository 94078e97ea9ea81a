"""Where training looks whether somebody wants it to end: before each evaluation of the policy."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from chunk_grpo.families.base import Conditioning, VelocityModel

Check = Callable[[], None]
"""A look at the stop request; it raises to have the work in hand given up."""


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
