import math

import pytest
import torch

from chunk_grpo.core.branching import rollout_branches
from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.log_prob import gaussian_log_prob
from chunk_grpo.core.rollout import rollout_ode, sample_noise
from chunk_grpo.core.sde import CPS, SDE, diffusion_coefs, sde_transition

TIMES = time_grid(6, shift=3.0)
COEFS = diffusion_coefs(TIMES, "flow", eta=0.7)
NOISE = torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
PROMPTS = torch.tensor([0.3, -0.5, 1.1], dtype=torch.float64)


def velocity_of(prompts):
    """A velocity that is not linear and differs from prompt to prompt."""
    return lambda x, t, rows: torch.tanh(x) * (1 + t.reshape(-1, 1, 1)) + prompts[rows].reshape(-1, 1, 1)


def streams(names):
    """Generators by name of the row, so that a row keeps its streams in any batch."""
    return lambda row, step, child: torch.Generator().manual_seed(10_000 * names[row] + 100 * step + child)


def branch(branch_steps=(0, 2, 4), children=3, names=(0, 1, 2), coefs=COEFS, sampler=SDE):
    names = list(names)
    return rollout_branches(
        velocity_of(PROMPTS[names]),
        NOISE[names],
        TIMES,
        coefs,
        branch_steps,
        children,
        streams(names),
        sampler,
    )


def test_shapes():
    branches = branch()
    assert branches.prefix.shape == (3, 7, 2, 4)
    assert [each.step for each in branches.branches] == [0, 2, 4]
    for each in branches.branches:
        assert each.before.shape == (3, 2, 4)
        assert each.after.shape == each.finals.shape == (3, 3, 2, 4)
        assert each.log_probs.shape == (3, 3)
        assert (each.transition_std.shape, each.transition_std.dtype) == ((), torch.float64)


def test_the_prefix_is_the_plain_ode_run():
    rows = torch.arange(3)
    plain = rollout_ode(lambda step: lambda x, t: velocity_of(PROMPTS)(x, t, rows), NOISE, TIMES)
    branches = branch()
    assert torch.equal(branches.prefix, plain)
    for each in branches.branches:
        assert torch.equal(each.before, plain[:, each.step])
        assert each.before.data_ptr() == branches.prefix[:, each.step].data_ptr()


def test_reusing_the_prefix_gives_what_recomputing_gives():
    # One child at a time: the ODE to x_k, one SDE step with the same noise, the ODE to the end.
    branches = branch()
    for each in branches.branches:
        t, t_next = TIMES[each.step].item(), TIMES[each.step + 1].item()
        for row in range(3):
            model = lambda x, t, row=row: velocity_of(PROMPTS)(x, t, torch.full((len(x),), row))  # noqa: E731
            x = NOISE[row : row + 1]
            before = rollout_ode(lambda step, model=model: model, x, TIMES)[:, each.step]
            now = torch.full((1,), t, dtype=torch.float64)
            transition = sde_transition(before, model(before, now), t, t_next, COEFS[each.step].item())
            for child in range(3):
                noise = sample_noise(x.shape, [streams([0, 1, 2])(row, each.step, child)]).to(x)
                after = transition.mean + transition.std * noise
                run = rollout_ode(lambda step, model=model: model, after, TIMES, first_step=each.step + 1)
                torch.testing.assert_close(each.after[row, child], after[0], rtol=0, atol=1e-13)
                torch.testing.assert_close(each.finals[row, child], run[0, -1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("branch_steps", [(0,), (4,), (3, 1), (0, 1, 2, 3, 4)])
def test_velocities_evaluated_are_those_of_the_formula(branch_steps):
    evaluated = []

    def counting(x, t, rows):
        assert len(x) == len(t) == len(rows)
        evaluated.append(len(x))
        return velocity_of(PROMPTS)(x, t, rows)

    rollout_branches(counting, NOISE, TIMES, COEFS, branch_steps, 4, streams([0, 1, 2]))
    B, S = 3, 6
    assert sum(evaluated) == B * S + sum(B * 4 * (S - 1 - step) for step in branch_steps)


def test_log_probs_are_those_of_before_and_after():
    for each in branch().branches:
        t, t_next = TIMES[each.step].item(), TIMES[each.step + 1].item()
        now = torch.full((3,), t, dtype=torch.float64)
        found = velocity_of(PROMPTS)(each.before, now, torch.arange(3))
        transition = sde_transition(each.before, found, t, t_next, COEFS[each.step].item())
        assert each.transition_std.item() == pytest.approx(transition.std.item(), abs=1e-15)
        for child in range(3):
            expected = gaussian_log_prob(each.after[:, child], transition.mean, transition.std)
            torch.testing.assert_close(each.log_probs[:, child], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("sampler", [SDE, CPS], ids=["sde", "cps"])
def test_vanishing_noise_ends_in_the_odes_image(sampler):
    # Without any noise a step has no density, so the limit is taken: 1e-9 is a coefficient, and an eta of CPS.
    branches = branch(coefs=torch.full((5,), 1e-9, dtype=torch.float64), sampler=sampler)
    for each in branches.branches:
        ode = branches.prefix[:, -1:].expand_as(each.finals)
        torch.testing.assert_close(each.finals, ode, rtol=0, atol=1e-7)
        assert 0 < each.transition_std.item() < 1e-8


def test_only_the_branch_steps_need_noise():
    coefs = torch.zeros(5, dtype=torch.float64)
    coefs[2] = COEFS[2]
    alone, among = branch(branch_steps=(2,), coefs=coefs).branches[0], branch().branches[1]
    torch.testing.assert_close(alone.finals, among.finals, rtol=0, atol=1e-13)


def test_a_child_depends_on_neither_its_batch_nor_the_other_branches():
    together = branch()
    alone = branch(branch_steps=(2,), children=2, names=(1,))
    reordered = branch(branch_steps=(4, 2), names=(2, 1))
    for other, row in ((alone.branches[0], 0), (reordered.branches[1], 1)):
        children = other.after.shape[1]
        expected = together.branches[1]
        torch.testing.assert_close(other.after[row], expected.after[1, :children], rtol=0, atol=1e-13)
        torch.testing.assert_close(other.finals[row], expected.finals[1, :children], rtol=0, atol=1e-13)
        torch.testing.assert_close(other.log_probs[row], expected.log_probs[1, :children], rtol=0, atol=1e-13)


def test_all_children_differ():
    for each in branch().branches:
        children = each.after.flatten(0, 1).flatten(1)
        assert torch.cdist(children, children).fill_diagonal_(1.0).min() > 1e-3


@pytest.mark.parametrize(("sampler", "strength"), [(SDE, 0.7), (CPS, 0.5)], ids=["sde", "cps"])
def test_spread_of_the_children_is_the_steps_std(gaussian_flow, sampler, strength):
    children, step = 4000, 2
    branches = rollout_branches(
        lambda x, t, rows: gaussian_flow.velocity(x, t),
        NOISE,
        TIMES,
        torch.full((5,), strength, dtype=torch.float64),
        (step,),
        children,
        lambda row, step, child: torch.Generator().manual_seed(5000 * row + child),
        sampler,
    )
    found = branches.branches[0]
    t, t_next = TIMES[step].item(), TIMES[step + 1].item()
    by_hand = 0.7 * math.sqrt(t - t_next) if sampler is SDE else t_next * math.sin(math.pi / 4)
    assert found.transition_std.item() == pytest.approx(by_hand, abs=1e-15)
    transition = sampler.transition(
        found.before, gaussian_flow.velocity(found.before, torch.full((3,), t)), t, t_next, strength
    )
    deviations = found.after - transition.mean[:, None]
    count = deviations.numel()
    assert abs(deviations.mean().item()) < 3 * by_hand / math.sqrt(count)
    assert abs(deviations.var().item() - by_hand**2) < 3 * by_hand**2 * math.sqrt(2 / count)


def test_branches_carry_no_gradient_and_are_float32_or_wider():
    x1 = NOISE.bfloat16().requires_grad_()
    found = rollout_branches(velocity_of(PROMPTS.float()), x1, TIMES, COEFS, (1,), 2, streams([0, 1, 2]))
    for tensor in (found.prefix, found.branches[0].after, found.branches[0].finals):
        assert (tensor.requires_grad, tensor.dtype) == (False, torch.float32)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"branch_steps": ()}, "branch_steps must name at least one step, got none"),
        ({"branch_steps": (1, 1)}, r"branch_steps must name each step once, got \[1, 1\]"),
        ({"branch_steps": (5,)}, r"branch_steps must lie within 0 .. 4 .*got \[5\]"),
        ({"children": 0}, "children must be at least 1, got 0"),
        ({"coefs": torch.ones(6)}, r"each of the 5 noisy steps, got shape \(6,\)"),
        ({"coefs": torch.zeros(5)}, "std must be positive"),
    ],
)
def test_branching_refuses(changed, message):
    with pytest.raises(ValueError, match=message):
        branch(**changed)
