import math
from itertools import pairwise

import pytest
import torch

from chunk_grpo.core.assignment import ChunkAssignment
from chunk_grpo.core.chunking import step_plan
from chunk_grpo.core.flow import ode_step, time_grid
from chunk_grpo.core.hybrid import uses_base
from chunk_grpo.core.log_prob import gaussian_log_prob
from chunk_grpo.core.ratios import chunk_ratio
from chunk_grpo.core.rollout import rollout_ode, rollout_sde, sample_noise
from chunk_grpo.core.sde import CPS, SDE, cps_transition, diffusion_coefs, sde_transition

TIMES = time_grid(6, shift=3.0)
COEFS = diffusion_coefs(TIMES, "flow", eta=0.7)
NOISE = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(7))


def one_each(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def velocity(x, t):
    """A velocity that is not linear, to leave no symmetry to lean on."""
    return torch.tanh(x) * (1 + t.reshape(-1, 1, 1)) + 0.3


def rollout(x1, generators, coefs=COEFS, keep_means=False):
    return rollout_sde(velocity, x1, TIMES, coefs, generators, keep_means=keep_means)


def test_trajectory_has_the_shapes_of_eq_11():
    trajectory = rollout(NOISE, one_each(1, 2))
    assert trajectory.times.shape == (7,)
    assert trajectory.states.shape == (2, 7, 3, 4)
    assert trajectory.log_probs.shape == (2, 5)
    assert trajectory.transition_stds.shape == (5,)
    assert (trajectory.times.dtype, trajectory.transition_stds.dtype) == (torch.float64, torch.float64)


def test_transition_stds_are_those_of_the_grid():
    trajectory = rollout(NOISE, one_each(1, 2))
    expected = [COEFS[s].item() * math.sqrt((TIMES[s] - TIMES[s + 1]).item()) for s in range(5)]
    assert trajectory.transition_stds.tolist() == pytest.approx(expected, abs=1e-15)


def test_the_last_step_is_deterministic_and_lands_on_the_predicted_image():
    states = rollout(NOISE, one_each(1, 2)).states
    t = TIMES[-2].item()
    assert torch.equal(
        states[:, -1], ode_step(states[:, -2], velocity(states[:, -2], torch.full((2,), t)), t, 0.0)
    )


def test_same_seed_same_trajectory():
    x1 = NOISE
    first = rollout(x1, torch.Generator().manual_seed(3))
    again = rollout(x1, torch.Generator().manual_seed(3))
    other = rollout(x1, torch.Generator().manual_seed(4))
    assert torch.equal(first.states, again.states)
    assert torch.equal(first.log_probs, again.log_probs)
    assert not torch.equal(first.states, other.states)


def test_a_sample_does_not_depend_on_its_batch():
    x1 = sample_noise((3, 2, 4), one_each(10, 11, 12))
    together = rollout(x1, one_each(1, 2, 3))
    alone = rollout(x1[1:2], one_each(2))
    reordered = rollout(x1[[2, 1]], one_each(3, 2))
    assert torch.equal(together.states[1], alone.states[0])
    assert torch.equal(together.states[1], reordered.states[1])
    assert torch.equal(together.log_probs[1], alone.log_probs[0])


def test_ratio_is_one_on_policy_in_any_packing():
    trajectory = rollout(NOISE, one_each(1, 2))
    x, x_next = trajectory.states[:, :5].flatten(0, 1), trajectory.states[:, 1:6].flatten(0, 1)
    t, t_next, coefs = TIMES[:5].repeat(2), TIMES[1:6].repeat(2), COEFS.repeat(2)
    transition = sde_transition(x, velocity(x, t.float()), t, t_next, coefs)
    log_probs = gaussian_log_prob(x_next, transition.mean, transition.std).reshape(2, 5)
    ratio = chunk_ratio(log_probs, trajectory.log_probs, ChunkAssignment.shared(step_plan(5), 2))
    torch.testing.assert_close(ratio, torch.ones(2, 5), rtol=0, atol=1e-6)


def test_vanishing_noise_is_the_ode():
    x1 = NOISE.double()
    sde = rollout(x1, one_each(1, 2), torch.full((5,), 1e-9, dtype=torch.float64)).states
    ode = rollout_ode(lambda step: velocity, x1, TIMES)
    torch.testing.assert_close(sde, ode, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", ["flow", "dance"])
def test_the_way_to_the_ode_is_linear_in_eta(kind):
    x1 = NOISE.double()
    ode = rollout_ode(lambda step: velocity, x1, TIMES)
    away = [
        (rollout(x1, one_each(1, 2), diffusion_coefs(TIMES, kind, eta)).states - ode).norm().item()
        for eta in (1e-3, 1e-4, 1e-5)
    ]
    for more, less in pairwise(away):  # the drift is quadratic in eta, so the noise alone is left
        assert more / less == pytest.approx(10, rel=0.02)
    assert away[-1] < 1e-3


def test_ode_follows_the_closed_form_of_a_linear_velocity():
    # v = x: each step multiplies by 1 - (t - t_next)
    states = rollout_ode(lambda step: lambda x, t: x, torch.ones(1, 1, 1, dtype=torch.float64), time_grid(2))
    assert states.flatten().tolist() == [1.0, 0.5, 0.25]


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


def test_wrong_number_of_generators_is_refused():
    with pytest.raises(ValueError, match=r"one generator per sample \(2\), got 3"):
        sample_noise((2, 3, 4), one_each(1, 2, 3))


def test_wrong_number_of_coefficients_is_refused():
    with pytest.raises(ValueError, match=r"each of the 5 noisy steps, got shape \(6,\)"):
        rollout(NOISE[:1], one_each(0), torch.ones(6))


def test_a_noisy_step_without_noise_is_refused():
    with pytest.raises(ValueError, match="std must be positive"):
        rollout(NOISE[:1], one_each(0), torch.zeros(5))


def test_a_deterministic_run_goes_on_from_any_of_its_states() -> None:
    times = time_grid(5, 3.0)
    whole = rollout_ode(lambda step: lambda x, t: torch.tanh(x) * (1 + step), torch.randn(2, 3, 4), times)
    rest = rollout_ode(lambda step: lambda x, t: torch.tanh(x) * (1 + step), whole[:, 2], times, first_step=2)
    assert torch.equal(rest, whole[:, 2:])


def noise_of(trajectory, step, draw_from=sde_transition, strengths=COEFS):
    """The standard normal noise that a step must have drawn."""
    x, t, t_next = trajectory.states[:, step], TIMES[step].item(), TIMES[step + 1].item()
    transition = draw_from(x, velocity(x, torch.full((2,), t)), t, t_next, strengths[step].item())
    return (trajectory.states[:, step + 1] - transition.mean) / transition.std


def test_naming_all_noisy_steps_is_the_default():
    default = rollout(NOISE, one_each(1, 2))
    named = rollout_sde(velocity, NOISE, TIMES, COEFS, one_each(1, 2), sde_steps=(4, 2, 0, 1, 3))
    assert torch.equal(named.states, default.states)
    assert torch.equal(named.log_probs, default.log_probs)
    assert torch.equal(named.transition_stds, default.transition_stds)


def test_steps_outside_the_window_are_the_odes_and_marked():
    mixed = rollout_sde(velocity, NOISE, TIMES, COEFS, one_each(1, 2), sde_steps=(1, 2))
    for step in (0, 3, 4, 5):
        x, t = mixed.states[:, step], TIMES[step].item()
        moved = ode_step(x, velocity(x, torch.full((2,), t)), t, TIMES[step + 1].item())
        assert torch.equal(mixed.states[:, step + 1], moved)
    full = rollout(NOISE, one_each(1, 2))
    expected = torch.zeros(5, dtype=torch.float64)
    expected[1:3] = full.transition_stds[1:3]
    assert torch.equal(mixed.transition_stds, expected)
    assert (mixed.log_probs != 0).tolist() == [[False, True, True, False, False]] * 2


def test_log_probs_inside_the_window_are_those_of_the_states():
    mixed = rollout_sde(velocity, NOISE, TIMES, COEFS, one_each(1, 2), sde_steps=(1, 2))
    for step in (1, 2):
        x, t = mixed.states[:, step], TIMES[step].item()
        transition = sde_transition(
            x, velocity(x, torch.full((2,), t)), t, TIMES[step + 1].item(), COEFS[step]
        )
        expected = gaussian_log_prob(mixed.states[:, step + 1], transition.mean, transition.std)
        torch.testing.assert_close(mixed.log_probs[:, step], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "generators", [one_each(1, 2), torch.Generator().manual_seed(3)], ids=["each", "one"]
)
def test_a_steps_noise_does_not_depend_on_which_others_are_noisy(generators):
    all_generators = [generators] if isinstance(generators, torch.Generator) else generators
    starts = [each.get_state() for each in all_generators]
    drawn = []
    for sde_steps in (None, (3,), (0, 3)):
        for each, start in zip(all_generators, starts, strict=True):
            each.set_state(start)
        run = rollout_sde(velocity, NOISE.double(), TIMES, COEFS, generators, sde_steps=sde_steps)
        drawn.append(noise_of(run, 3))
    torch.testing.assert_close(drawn[0], drawn[1], rtol=0, atol=1e-6)  # drawn in float32
    torch.testing.assert_close(drawn[0], drawn[2], rtol=0, atol=1e-6)


def test_coefficients_outside_the_window_do_not_matter():
    only_third = torch.tensor([0.0, 0.0, 0.7, 0.0, 0.0])
    states = rollout_sde(velocity, NOISE, TIMES, only_third, one_each(1, 2), sde_steps=[2]).states
    other = rollout_sde(velocity, NOISE, TIMES, torch.full((5,), 0.7), one_each(1, 2), sde_steps=[2]).states
    assert torch.equal(states, other)


def test_cps_rollout_draws_the_same_noise_by_its_own_transition():
    eta = torch.full((5,), 0.7, dtype=torch.float64)
    run = rollout_sde(velocity, NOISE.double(), TIMES, eta, one_each(1, 2), sampler=CPS)
    sde = rollout_sde(velocity, NOISE.double(), TIMES, COEFS, one_each(1, 2))
    expected = TIMES[1:6] * math.sin(0.35 * math.pi)
    torch.testing.assert_close(run.transition_stds, expected, rtol=0, atol=1e-15)
    for step in range(5):
        noise = noise_of(run, step, cps_transition, eta)
        torch.testing.assert_close(noise, noise_of(sde, step), rtol=0, atol=1e-6)
        density = -noise.square().flatten(1).mean(1) / 2 - math.log(math.sqrt(2 * math.pi) * expected[step])
        torch.testing.assert_close(run.log_probs[:, step], density, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sampler", [SDE, CPS], ids=["sde", "cps"])
@pytest.mark.parametrize("sde_steps", [None, (1, 2)], ids=["all", "window"])
def test_kept_means_are_those_that_the_states_were_drawn_from(sde_steps, sampler):
    coefs = torch.full((5,), 0.7, dtype=torch.float64)
    options = {"sde_steps": sde_steps, "sampler": sampler}
    run = rollout_sde(velocity, NOISE, TIMES, coefs, one_each(1, 2), keep_means=True, **options)
    assert run.means.shape == (2, 5, 3, 4)
    generators = one_each(1, 2)
    for step in range(5):
        mean, std, after = run.means[:, step], run.transition_stds[step], run.states[:, step + 1]
        noise = sample_noise((2, 3, 4), generators)
        assert torch.equal(mean + std.float() * noise, after)  # std 0 outside the window
        if std > 0:
            assert torch.equal(gaussian_log_prob(after, mean, std.float()), run.log_probs[:, step])
        else:
            assert torch.equal(mean, after)


def test_keeping_means_changes_nothing_else():
    plain, kept = rollout(NOISE, one_each(1, 2)), rollout(NOISE, one_each(1, 2), keep_means=True)
    assert plain.means is None
    for name in ("times", "states", "transition_stds", "log_probs"):
        assert torch.equal(getattr(plain, name), getattr(kept, name))


@pytest.mark.parametrize(
    ("sde_steps", "message"),
    [
        ((), "sde_steps must name at least one step, got none"),
        ((1, 2, 1), r"sde_steps must name each step once, got \[1, 2, 1\]"),
        ((-1,), r"within 0 .. 4 \(the last step takes no noise\), got \[-1\]"),
        ((4, 5), r"within 0 .. 4 \(the last step takes no noise\), got \[4, 5\]"),
    ],
)
def test_a_wrong_choice_of_noisy_steps_is_refused(sde_steps, message):
    with pytest.raises(ValueError, match=message):
        rollout_sde(velocity, NOISE, TIMES, COEFS, one_each(1, 2), sde_steps=sde_steps)
