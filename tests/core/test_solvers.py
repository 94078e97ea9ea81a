"""Steps of the ODE by hand, and how fast their errors fall."""

import math
from itertools import pairwise

import pytest
import torch

from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.rollout import rollout_ode, rollout_sde
from chunk_grpo.core.sde import step_noise
from chunk_grpo.core.solvers import ODE_STEPS
from tests.core.conftest import GaussianFlow, double


def walk(solver, times, x, velocity):
    """The states of one run."""
    step, states = ODE_STEPS[solver](), [x]
    for t, t_next in pairwise(times):
        states.append(step(states[-1], velocity(states[-1], t), t, t_next))
    return states


def test_the_second_order_step_by_hand():
    # At 3/4, 1/2 and 1/4 the log-ratios are -log 3, 0 and log 3, so h = h_before and half the change of D is added.
    step = ODE_STEPS["dpm2"]()
    first = step(double(2.0), double(1.0), 0.75, 0.5)  # Euler: 2 - 1/4; D = 2 - 3/4
    assert first.tolist() == [1.75]
    # Euler: 1.75 - 1/2. D = 1.75 - 1, D_before = 1.25; (1 - 1/2) * 1/2 * (0.75 - 1.25) = -0.125
    assert step(first, double(2.0), 0.5, 0.25).tolist() == pytest.approx([1.125], abs=1e-15)


def test_uneven_steps_extrapolate_by_their_log_signal_to_noise_ratios():
    # 0.8, 0.5, 0.2 have equal log-ratios of log 4; 0.8, 0.5, 0.1 have log 4 and log 9.
    for last, ratio in ((0.2, 1.0), (0.1, math.log(9) / math.log(4))):
        states = walk("dpm2", (0.8, 0.5, last), double(1.0), lambda x, t: double(t * t))
        before, data = 1 - 0.8**3, 1 - 0.3 * 0.64 - 0.5**3
        expected = 1 - 0.3 * 0.64 - (0.5 - last) * 0.25 + (1 - last / 0.5) * ratio / 2 * (data - before)
        assert states[-1].tolist() == pytest.approx([expected], abs=1e-14)


@pytest.mark.parametrize(
    "steps",
    [[(1.0, 0.7)], [(1.0, 0.7), (0.7, 0.4)], [(0.9, 0.7), (0.7, 0.0)], [(0.9, 0.7), (0.6, 0.4)]],
    ids=["from noise", "after it", "to the image", "after another run's step"],
)
def test_where_a_ratio_is_infinite_or_there_is_no_step_before_it_is_eulers(steps):
    euler, second = ODE_STEPS["euler"](), ODE_STEPS["dpm2"]()
    for number, (t, t_next) in enumerate(steps):
        x, velocity = double(1.0 + number), double(3.0 - 2 * number)
        found, expected = second(x, velocity, t, t_next), euler(x, velocity, t, t_next)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("solver", "factor"), [("euler", 2), ("dpm2", 4)])
def test_the_order_is_that_of_the_solver(solver, factor):
    """v = x + t from 0.9 to 0.1: x = c e^t - t - 1. Twice the steps leave 1 / 2 or 1 / 4 of the error."""

    def error(num_steps):
        times = torch.linspace(0.9, 0.1, num_steps + 1, dtype=torch.float64).tolist()
        end = walk(solver, times, double(math.exp(0.9) - 1.9), lambda x, t: x + t)[-1]
        return abs(float(end) - (math.exp(0.1) - 1.1))

    assert error(160) / error(320) == pytest.approx(factor, rel=0.05)


def test_rollouts_take_the_solver_and_evaluate_each_state_once():
    """Data N(1.5, 0.6^2): the ODE maps noise x to 1.5 + 0.6 x. At shift 3 and 17 steps, seen at three noises."""
    flow, times = GaussianFlow(mean=1.5, std=0.6), time_grid(17, 3.0)
    strengths, sampler = step_noise("ode", times, eta=0.7)
    start = double(-1.0, 0.0, 1.0).view(3, 1, 1)
    exact, errors = 1.5 + 0.6 * start, {}
    for solver in ("euler", "dpm2"):
        seen = []

        def velocity(x, t, seen=seen):
            seen.append(float(t[0]))
            return flow.velocity(x, t)

        generators = [torch.Generator().manual_seed(row) for row in range(3)]
        made = rollout_sde(
            velocity, start, times, strengths, generators, sampler=sampler, keep_means=True, solver=solver
        )
        assert seen == times[:-1].tolist()
        assert torch.equal(made.means, made.states[:, 1:17])
        errors[solver] = (made.states[:, -1] - exact).abs().max().item()
        if solver == "euler":
            assert torch.equal(made.states, rollout_ode(lambda step: flow.velocity, start, times))
    assert errors["dpm2"] < errors["euler"] / 3
