"""Steps of the probability-flow ODE, of first and of second order, each with one evaluation of the velocity."""

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from torch import Tensor

from chunk_grpo.core.choices import SOLVERS, Solver, implemented
from chunk_grpo.core.flow import ode_step

OdeStep: TypeAlias = Callable[[Tensor, Tensor, float, float], Tensor]
"""(state [B, ...] at t, velocity there, t, t_next) -> state at t_next. Called for the steps of one run, in order."""


class MultistepDpm:
    """Second order from two velocities, the step's and the one of the step before it.

    With D = x - t v, the predicted data, and the log signal-to-noise ratio l(t) = log((1 - t) / t):

        x_next = t_next / t x + (1 - t_next / t) (D + (D - D_before) h / (2 h_before)),
        h = l(t_next) - l(t),  h_before = l(t) - l(t_before)

    Without the last term this is the Euler step, which is taken where a ratio is infinite: from noise (t = 1), with it
    as the step before (h_before is infinite, the term is 0), and to the image (t_next = 0). Also after a step
    that did not end at t, such as the first. Source: DPM-Solver++ (2M), arXiv 2211.01095, for a straight flow.
    """

    def __init__(self) -> None:
        self._before: tuple[Tensor, float, float] | None = None

    def __call__(self, x: Tensor, velocity: Tensor, t: float, t_next: float) -> Tensor:
        """One step; keeps its predicted data for the next one."""
        data = ode_step(x, velocity, t, 0.0)
        step = ode_step(x, velocity, t, t_next)
        before, self._before = self._before, (data, t, t_next)
        if before is None or before[2] != t or before[1] == 1 or t_next == 0:
            return step
        share = (_log_snr(t_next) - _log_snr(t)) / (2 * (_log_snr(t) - _log_snr(before[1])))
        return step + (1 - t_next / t) * share * (data - before[0])


ODE_STEPS: Mapping[Solver, Callable[[], OdeStep]] = implemented(
    SOLVERS, "core/solvers.py", {"euler": lambda: ode_step, "dpm2": MultistepDpm}
)
"""By choice: the step of a new run."""


def _log_snr(t: float) -> float:
    return math.log((1 - t) / t)
