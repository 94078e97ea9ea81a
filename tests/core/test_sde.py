import math
from itertools import pairwise

import pytest
import torch

from chunk_grpo.core.flow import ode_step, time_grid
from chunk_grpo.core.sde import CPS, SDE, cps_std, cps_transition, diffusion_coefs, sde_transition, transition_std
from tests.core.conftest import double, draw


def final_moments(flow, times, coefs, draw_from=sde_transition):
    """Exact mean and variance after all steps: a step's mean is affine in x, so two probes give its map."""
    mean, variance = 0.0, 1.0
    probes = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    for step in range(len(times) - 1):
        t, t_next = times[step], times[step + 1]
        velocity = flow.velocity(probes, t.expand(2))
        coef = coefs[step] if step < len(coefs) else 0.0
        transition = draw_from(probes, velocity, t, t_next, coef)
        offset = transition.mean[0].item()
        factor = transition.mean[1].item() - offset
        mean = factor * mean + offset
        variance = factor**2 * variance + transition.std.item() ** 2
    return mean, variance


def test_transition_by_hand():
    # dt .25, s^2/2t = .64, x + (1-t) v = 1.5, drift -1 + .96 = -.04, mean 2 + .25 * .04
    transition = sde_transition(double([2.0]), double([-1.0]), 0.5, 0.25, 0.8)
    assert transition.mean.item() == pytest.approx(2.01, abs=1e-14)
    assert transition.std.item() == pytest.approx(0.4, abs=1e-15)


def test_flow_coefficients_by_hand():
    # eta * sqrt(t / (1 - t)) at t = 1 (with 1 - .9 below), .9 and .75; the step from .5 takes no noise
    coefs = diffusion_coefs(time_grid(4, shift=3.0), "flow", eta=0.7)
    assert coefs.tolist() == pytest.approx([0.7 * math.sqrt(10), 2.1, 0.7 * math.sqrt(3)], abs=1e-13)
    assert diffusion_coefs(time_grid(4), "dance", eta=0.7).tolist() == [0.7, 0.7, 0.7]


@pytest.mark.parametrize("transition", [sde_transition, cps_transition])
def test_eta_zero_is_the_ode(transition):
    x, v = draw(2, 3, 4), draw(2, 3, 4, seed=1)
    step = transition(x, v, 0.7, 0.6, 0.0)
    assert torch.equal(step.mean, ode_step(x, v, 0.7, 0.6))
    assert step.std.item() == 0.0


@pytest.mark.parametrize("transition", [sde_transition, cps_transition])
def test_half_precision_is_stepped_in_float32(transition):
    x = torch.ones(1, 2, 2, dtype=torch.bfloat16)
    step = transition(x, x, 0.5, 0.499, 0.7)
    assert (step.mean.dtype, step.std.dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize("step", [0, 1, 7, 15])
def test_flow_sde_equals_dance_sde_for_the_same_coefficient(step):
    times = time_grid(17, 3.0)
    coef = diffusion_coefs(times, "flow", eta=0.7)[step].item()
    t, t_next = times[step].item(), times[step + 1].item()
    x, v = draw(2, 3, 4), draw(2, 3, 4, seed=1)
    transition = sde_transition(x, v, t, t_next, coef)

    # Flow-GRPO's form: gathered by x and by v.
    pull = coef**2 / (2 * t) * (t_next - t)
    flow_form = x * (1 + pull) + v * ((t_next - t) + pull * (1 - t))
    # Dance-GRPO's form: the score of the predicted image, half of sigma^2 of it as drift.
    score = -(x - (1 - t) * ode_step(x, v, t, 0.0)) / t**2
    dance_form = x + (t_next - t) * (v - coef**2 / 2 * score)

    torch.testing.assert_close(transition.mean, flow_form, rtol=0, atol=1e-13)
    torch.testing.assert_close(transition.mean, dance_form, rtol=0, atol=1e-13)
    assert transition.std.item() == pytest.approx(coef * math.sqrt(t - t_next), abs=1e-15)


@pytest.mark.parametrize(("transition", "strength"), [(sde_transition, [0.5, 1.5]), (cps_transition, [0.5, 1.0])])
def test_one_time_a_sample_equals_one_call_a_sample(transition, strength):
    x, v = draw(2, 3, 4), draw(2, 3, 4, seed=1)
    t, t_next, strengths = torch.tensor([0.9, 0.4]), torch.tensor([0.8, 0.1]), torch.tensor(strength)
    packed = transition(x, v, t, t_next, strengths)
    for row in range(2):
        alone = transition(x[row : row + 1], v[row : row + 1], t[row], t_next[row], strengths[row])
        assert torch.equal(packed.mean[row], alone.mean[0])
        assert torch.equal(packed.std[row], alone.std)


@pytest.mark.parametrize("eta", [0.7, 1.5])
def test_sde_keeps_the_marginals_of_a_gaussian_as_steps_shrink(gaussian_flow, eta):
    errors = []
    for num_steps in (250, 500, 1000):
        times = time_grid(num_steps)
        mean, variance = final_moments(gaussian_flow, times, diffusion_coefs(times, "dance", eta))
        errors.append((abs(mean - gaussian_flow.mean), abs(variance - gaussian_flow.std**2)))
    for coarse, fine in pairwise(errors):
        assert fine[0] <= 0.6 * coarse[0] + 1e-9  # Euler's error is of first order: halved steps, halved error
        assert fine[1] <= 0.6 * coarse[1] + 1e-9
    assert errors[-1] < (5e-3, 5e-3)


def test_cps_transition_by_hand():
    # x0_hat 2 + .5 = 2.5, x1_hat 2 - .5 = 1.5; std .4 sin(30 deg) = .2, kept sqrt(.16 - .04) = .2 sqrt(3)
    transition = cps_transition(double([2.0]), double([-1.0]), 0.5, 0.4, 1 / 3)
    assert transition.mean.item() == pytest.approx(0.6 * 2.5 + 0.2 * math.sqrt(3) * 1.5, abs=1e-15)
    assert transition.std.item() == pytest.approx(0.2, abs=1e-15)


@pytest.mark.parametrize("eta", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize(("t", "t_next"), [(1.0, 0.98), (0.75, 0.5), (0.3, 0.1), (0.1, 0.0)])
def test_cps_keeps_the_coefficients_of_the_path(t, t_next, eta):
    x0, x1 = double([1.0], [0.0]), double([0.0], [1.0])  # one probe each
    transition = cps_transition((1 - t) * x0 + t * x1, x1 - x0, t, t_next, eta)
    (data, old_noise), new_noise = transition.mean.flatten().tolist(), transition.std.item()
    assert data == pytest.approx(1 - t_next, abs=1e-15)
    assert old_noise**2 + new_noise**2 == pytest.approx(t_next**2, abs=1e-15)


def test_cps_with_predicted_means_loses_variance_on_any_grid(gaussian_flow):
    # The exact velocity predicts the mean of x0, not x0: what CPS keeps of the path, it keeps of less than x0.
    for num_steps in (250, 1000):
        times = time_grid(num_steps)
        _, of_ode = final_moments(gaussian_flow, times, [0.0] * (num_steps - 1), cps_transition)
        mean, of_cps = final_moments(gaussian_flow, times, [0.7] * (num_steps - 1), cps_transition)
        assert of_ode == pytest.approx(gaussian_flow.std**2, abs=5e-3)
        assert mean == pytest.approx(gaussian_flow.mean, abs=1e-12)
        assert of_cps == pytest.approx(0.26, abs=5e-3)


@pytest.mark.parametrize("sampler", [SDE, CPS])
def test_a_samplers_std_is_its_transitions(sampler):
    x, v = draw(2, 3, 4), draw(2, 3, 4, seed=1)
    transition = sampler.transition(x, v, 0.7, 0.6, 0.5)
    assert torch.equal(sampler.std(0.7, 0.6, 0.5), transition.std)


GRID, FALLS = torch.tensor([1.0, 0.5, 0.0]), "t > t_next >= 0, got t=0.5, t_next=0.5"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cps_std(0.5, 0.5, 0.7), FALLS),
        (lambda: cps_std(0.5, 0.4, -0.1), "eta of a CPS step must be from 0 to 1, got -0.1"),
        (lambda: cps_std(0.5, 0.4, 1.1), "eta of a CPS step must be from 0 to 1, got 1.1"),
        (lambda: cps_std(0.5, 0.4, math.nan), "from 0 to 1, got nan"),
        (lambda: transition_std(0.5, 0.5, 0.7), FALLS),
        (lambda: transition_std(0.5, -0.1, 0.7), "t > t_next >= 0"),
        (lambda: transition_std(1.1, 0.5, 0.7), "1 >= t"),
        (lambda: transition_std(0.5, 0.4, -0.7), "diffusion_coef must be at least 0, got -0.7"),
        (lambda: diffusion_coefs(torch.tensor([1.0, 0.5, 0.6, 0.0]), "flow", 0.7), "fall strictly"),
        (lambda: diffusion_coefs(torch.tensor([1.0, 0.5, 0.1]), "flow", 0.7), "from at most 1 to 0"),
        (lambda: diffusion_coefs(torch.tensor([1.0, 0.0]), "flow", 0.7), r"\[S \+ 1\] with S >= 2"),
        (lambda: diffusion_coefs(GRID, "flow", -0.1), "eta must be a finite number, at least 0, got -0.1"),
        (lambda: diffusion_coefs(GRID, "cps", 0.7), "kind must be 'flow' or 'dance', got 'cps'"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
