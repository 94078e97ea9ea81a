import math

import pytest
import torch

from chunk_grpo.core.assignment import ChunkAssignment
from chunk_grpo.core.chunking import step_plan
from chunk_grpo.core.flow import ode_step, time_grid
from chunk_grpo.core.hybrid import uses_base
from chunk_grpo.core.log_prob import gaussian_log_prob
from chunk_grpo.core.ratios import chunk_ratio
from chunk_grpo.core.rollout import rollout_ode, rollout_sde, sample_noise
from chunk_grpo.core.sde import CPS, SDE, diffusion_coefs, step_noise
from tests.core.conftest import double

TIMES = time_grid(6, shift=3.0)
COEFS = diffusion_coefs(TIMES, "flow", eta=0.7)
ETAS = torch.full((5,), 0.7, dtype=torch.float64)
NOISE = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(7))


def one_each(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def velocity(x, t):
    """A velocity that is not linear, to leave no symmetry to lean on."""
    return torch.tanh(x) * (1 + t.reshape(-1, 1, 1)) + 0.3


def rollout(x1, generators, coefs=COEFS, sde_steps=None):
    return rollout_sde(velocity, x1, TIMES, coefs, generators, sde_steps=sde_steps)


def flow_std(step):
    return COEFS[step].item() * math.sqrt((TIMES[step] - TIMES[step + 1]).item())


def cps_std(step):
    return TIMES[step + 1].item() * math.sin(0.35 * math.pi)


def test_trajectory_has_the_shapes_of_eq_11():
    trajectory = rollout(NOISE, one_each(1, 2))
    assert trajectory.times.shape == (7,)
    assert trajectory.states.shape == (2, 7, 3, 4)
    assert trajectory.log_probs.shape == (2, 5)
    assert (trajectory.times.dtype, trajectory.transition_stds.dtype) == (torch.float64, torch.float64)


@pytest.mark.parametrize(("sampler", "strengths", "std"), [(SDE, COEFS, flow_std), (CPS, ETAS, cps_std)])
def test_ratio_is_one_on_policy_in_any_packing(sampler, strengths, std):
    trajectory = rollout_sde(velocity, NOISE, TIMES, strengths, one_each(1, 2), sampler=sampler)
    assert trajectory.transition_stds.tolist() == pytest.approx([std(step) for step in range(5)], abs=1e-15)
    x, x_next = trajectory.states[:, :5].flatten(0, 1), trajectory.states[:, 1:6].flatten(0, 1)
    t, t_next = TIMES[:5].repeat(2), TIMES[1:6].repeat(2)
    transition = sampler.transition(x, velocity(x, t.float()), t, t_next, strengths.repeat(2))
    log_probs = gaussian_log_prob(x_next, transition.mean, transition.std).reshape(2, 5)
    ratio = chunk_ratio(log_probs, trajectory.log_probs, ChunkAssignment.shared(step_plan(5), 2))
    torch.testing.assert_close(ratio, torch.ones(2, 5), rtol=0, atol=1e-6)


def test_the_last_step_is_deterministic_and_lands_on_the_predicted_image():
    states = rollout(NOISE, one_each(1, 2)).states
    t = TIMES[-2].item()
    assert torch.equal(states[:, -1], ode_step(states[:, -2], velocity(states[:, -2], torch.full((2,), t)), t, 0.0))


def test_a_sample_does_not_depend_on_its_batch():
    x1 = sample_noise((3, 2, 4), one_each(10, 11, 12))
    together = rollout(x1, one_each(1, 2, 3))
    alone = rollout(x1[1:2], one_each(2))
    reordered = rollout(x1[[2, 1]], one_each(3, 2))
    assert torch.equal(together.states[1], alone.states[0])
    assert torch.equal(together.states[1], reordered.states[1])
    assert torch.equal(together.log_probs[1], alone.log_probs[0])


def test_ode_follows_the_closed_form_of_a_linear_velocity():
    # v = x: each step multiplies by 1 - (t - t_next)
    states = rollout_ode(lambda step: lambda x, t: x, torch.ones(1, 1, 1, dtype=torch.float64), time_grid(2))
    assert states.flatten().tolist() == [1.0, 0.5, 0.25]


def test_a_rollout_without_noise_is_the_ode_by_hand():
    # v = x on the grid 1, 3/4, 1/2, 1/4, 0: each step multiplies by 3/4, and no step has a density
    strengths, sampler = step_noise("ode", time_grid(4), eta=0.7)
    start = torch.ones(1, 1, 1, dtype=torch.float64)
    made = rollout_sde(lambda x, t: x, start, time_grid(4), strengths, one_each(1), sampler=sampler, keep_means=True)
    assert made.states.flatten().tolist() == [1.0, 0.75, 0.5625, 0.421875, 0.31640625]
    assert made.transition_stds.tolist() == [0.0] * 3
    assert made.log_probs.tolist() == [[0.0] * 3]
    assert torch.equal(made.means, made.states[:, 1:4])


def test_sampled_sde_keeps_the_odes_marginals_within_three_sigma(gaussian_flow, seeded):
    times = time_grid(400)
    x1 = torch.randn(4000, 2, 5, dtype=torch.float64, generator=seeded)
    coefs = diffusion_coefs(times, "dance", eta=0.7)
    states = rollout_sde(gaussian_flow.velocity, x1, times, coefs, seeded).states.flatten(2)
    ode = rollout_ode(lambda step: gaussian_flow.velocity, x1, times).flatten(2)
    count = x1.numel()
    for step in (0, 100, 200, 300, 400):
        mean, variance = gaussian_flow.marginal(times[step].item())
        for sampled in (states[:, step], ode[:, step]):
            assert abs(sampled.mean().item() - mean) < 3 * math.sqrt(variance / count)
            assert abs(sampled.var().item() - variance) < 3 * variance * math.sqrt(2 / count)


def test_hybrid_rollout_changes_the_model_where_told():
    taken = []

    def velocity_for_step(step):
        taken.append("base" if uses_base(step, num_steps=6, base_steps=2) else "tuned")
        return velocity

    rollout_ode(velocity_for_step, NOISE[:1], TIMES)
    assert taken == ["tuned"] * 4 + ["base"] * 2


def test_progress_is_reported_after_each_step():
    sde_steps, ode_steps = [], []
    rollout_sde(velocity, NOISE[:1], TIMES, COEFS, one_each(0), on_step=sde_steps.append)
    rollout_ode(lambda step: velocity, NOISE[:1], TIMES, on_step=ode_steps.append)
    assert sde_steps == ode_steps == [0, 1, 2, 3, 4, 5]


def test_rollouts_carry_no_gradient():
    x1 = NOISE[:1].clone().requires_grad_()
    assert not rollout(x1, one_each(0)).states.requires_grad
    assert not rollout_ode(lambda step: velocity, x1, TIMES).requires_grad


def test_bfloat16_noise_is_rolled_out_in_float32():
    states = rollout(NOISE[:1].bfloat16(), one_each(0)).states
    assert states.dtype == torch.float32


def test_the_same_noise_can_be_shared_within_a_group():
    noise = sample_noise((2, 3, 4), one_each(5, 5))
    assert torch.equal(noise[0], noise[1])


def test_a_deterministic_run_goes_on_from_any_of_its_states():
    times = time_grid(5, 3.0)
    whole = rollout_ode(lambda step: lambda x, t: torch.tanh(x) * (1 + step), torch.randn(2, 3, 4), times)
    rest = rollout_ode(lambda step: lambda x, t: torch.tanh(x) * (1 + step), whole[:, 2], times, first_step=2)
    assert torch.equal(rest, whole[:, 2:])


def test_steps_outside_the_window_follow_the_ode_with_zero_std():
    mixed = rollout(NOISE, one_each(1, 2), sde_steps=(2, 1))
    for step in (0, 3, 4, 5):
        x, t = mixed.states[:, step], TIMES[step].item()
        moved = ode_step(x, velocity(x, torch.full((2,), t)), t, TIMES[step + 1].item())
        assert torch.equal(mixed.states[:, step + 1], moved)
    full = rollout(NOISE, one_each(1, 2))
    expected = torch.zeros(5, dtype=torch.float64)
    expected[1:3] = full.transition_stds[1:3]
    assert torch.equal(mixed.transition_stds, expected)
    assert (mixed.log_probs != 0).tolist() == [[False, True, True, False, False]] * 2


def test_coefficients_outside_the_window_do_not_matter():
    only_third = double(0.0, 0.0, 0.7, 0.0, 0.0)
    states = rollout(NOISE, one_each(1, 2), only_third, [2]).states
    other = rollout(NOISE, one_each(1, 2), ETAS, [2]).states
    assert torch.equal(states, other)


@pytest.mark.parametrize("sampler", [SDE, CPS], ids=["sde", "cps"])
@pytest.mark.parametrize("sde_steps", [None, (1, 2)], ids=["all", "window"])
def test_kept_means_and_noise_reproduce_the_states(sde_steps, sampler):
    options = {"sde_steps": sde_steps, "sampler": sampler}
    run = rollout_sde(velocity, NOISE, TIMES, ETAS, one_each(1, 2), keep_means=True, **options)
    plain = rollout_sde(velocity, NOISE, TIMES, ETAS, one_each(1, 2), **options)
    assert torch.equal(run.states, plain.states)
    assert (run.means.shape, plain.means) == ((2, 5, 3, 4), None)
    generators = one_each(1, 2)
    for step in range(5):
        mean, std, after = run.means[:, step], run.transition_stds[step], run.states[:, step + 1]
        noise = sample_noise((2, 3, 4), generators)
        assert torch.equal(mean + std.float() * noise, after)  # std 0 outside the window
        if std > 0:
            assert torch.equal(gaussian_log_prob(after, mean, std.float()), run.log_probs[:, step])
        else:
            assert torch.equal(mean, after)


def test_a_straight_velocity_predicts_its_data_at_every_step():
    data = torch.tensor([1.5, -0.5]).view(2, 1, 1).expand(2, 3, 4)
    made = rollout_sde(
        lambda x, t: (x - data) / t.view(-1, 1, 1), NOISE, TIMES, COEFS, one_each(1, 2), predict_at=(4, 0, 2)
    )
    torch.testing.assert_close(made.predicted, data.unsqueeze(1).expand(2, 3, 3, 4), rtol=0, atol=1e-6)


@pytest.mark.parametrize("sampler", [SDE, CPS], ids=["sde", "cps"])
def test_predictions_take_no_evaluation_and_change_nothing(sampler):
    seen = []

    def counted(x, t):
        seen.append(float(t[0]))
        return velocity(x, t)

    run = rollout_sde(counted, NOISE, TIMES, ETAS, one_each(1, 2), sampler=sampler, predict_at=(1, 3))
    assert seen == [pytest.approx(float(t)) for t in TIMES[:-1]]
    plain = rollout_sde(velocity, NOISE, TIMES, ETAS, one_each(1, 2), sampler=sampler)
    assert (torch.equal(run.states, plain.states), plain.predicted) == (True, None)
    for number, step in enumerate((1, 3)):
        x, t = run.states[:, step], TIMES[step].float()
        assert torch.equal(run.predicted[:, number], x - t * velocity(x, t.expand(2)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: rollout_sde(velocity, NOISE, TIMES, COEFS, one_each(1, 2), predict_at=(5,)),
            r"predict_at must lie within 0 .. 4 \(.*\), got \[5\]",
        ),
        (lambda: sample_noise((2, 3, 4), one_each(1, 2, 3)), r"one generator per sample \(2\), got 3"),
        (lambda: rollout(NOISE, one_each(1, 2), torch.ones(6)), r"the 5 noisy steps, got shape \(6,\)"),
        (lambda: rollout(NOISE, one_each(1, 2), -COEFS), "diffusion_coef must be at least 0"),
        (lambda: rollout(NOISE, one_each(1, 2), COEFS, ()), "must name at least one step, got none"),
        (lambda: rollout(NOISE, one_each(1, 2), COEFS, (1, 2, 1)), r"each step once, got \[1, 2, 1\]"),
        (lambda: rollout(NOISE, one_each(1, 2), COEFS, (-1,)), r"within 0 .. 4 \(.*\), got \[-1\]"),
        (lambda: rollout(NOISE, one_each(1, 2), COEFS, (4, 5)), r"within 0 .. 4 \(.*\), got \[4, 5\]"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
