import pytest
import torch

from chunk_grpo.core.branching import rollout_branches
from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.log_prob import gaussian_log_prob
from chunk_grpo.core.rollout import rollout_ode, sample_noise
from chunk_grpo.core.sde import CPS, SDE, diffusion_coefs

TIMES = time_grid(6, shift=3.0)
COEFS = diffusion_coefs(TIMES, "flow", eta=0.7)
NOISE = torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
PROMPTS = torch.tensor([0.3, -0.5, 1.1], dtype=torch.float64)


def velocity_of(prompts):
    """A velocity that is not linear and differs from prompt to prompt."""
    return lambda x, t, rows: torch.tanh(x) * (1 + t.reshape(-1, 1, 1)) + prompts[rows].reshape(-1, 1, 1)


def stream(row, step, child):
    return torch.Generator().manual_seed(10_000 * row + 100 * step + child)


def branch(branch_steps=(0, 2, 4), children=3, coefs=COEFS, sampler=SDE):
    return rollout_branches(velocity_of(PROMPTS), NOISE, TIMES, coefs, branch_steps, children, stream, sampler)


def test_the_prefix_is_the_plain_ode_run():
    rows = torch.arange(3)
    plain = rollout_ode(lambda step: lambda x, t: velocity_of(PROMPTS)(x, t, rows), NOISE, TIMES)
    for each in branch():
        assert torch.equal(each.before, plain[:, each.step])


@pytest.mark.parametrize(
    ("sampler", "coefs"), [(SDE, COEFS), (CPS, torch.full((5,), 0.5, dtype=torch.float64))], ids=["sde", "cps"]
)
def test_reusing_the_prefix_gives_what_recomputing_gives(sampler, coefs):
    # One child at a time: the ODE to x_k, one noisy step with the same noise, the ODE to the end.
    branches = branch(branch_steps=(4, 0, 2), coefs=coefs, sampler=sampler)
    assert [each.step for each in branches] == [4, 0, 2]
    for each in branches:
        assert each.after.shape == each.finals.shape == (3, 3, 2, 4)
        t, t_next = TIMES[each.step].item(), TIMES[each.step + 1].item()
        for row in range(3):
            model = lambda x, t, row=row: velocity_of(PROMPTS)(x, t, torch.full((len(x),), row))  # noqa: E731
            x = NOISE[row : row + 1]
            before = rollout_ode(lambda step, model=model: model, x, TIMES)[:, each.step]
            now = torch.full((1,), t, dtype=torch.float64)
            transition = sampler.transition(before, model(before, now), t, t_next, coefs[each.step].item())
            torch.testing.assert_close(each.mean[row], transition.mean[0], rtol=0, atol=1e-13)
            for child in range(3):
                noise = sample_noise(x.shape, [stream(row, each.step, child)]).to(x)
                after = transition.mean + transition.std * noise
                run = rollout_ode(lambda step, model=model: model, after, TIMES, first_step=each.step + 1)
                density = gaussian_log_prob(after, transition.mean, transition.std)
                torch.testing.assert_close(each.after[row, child], after[0], rtol=0, atol=1e-13)
                torch.testing.assert_close(each.finals[row, child], run[0, -1], rtol=0, atol=1e-13)
                torch.testing.assert_close(each.log_probs[row, child], density[0], rtol=0, atol=1e-13)


@pytest.mark.parametrize("branch_steps", [(0,), (4,), (3, 1), (0, 1, 2, 3, 4)])
def test_evaluation_count_matches_formula(branch_steps):
    evaluated = []

    def counting(x, t, rows):
        assert len(x) == len(t) == len(rows)
        evaluated.append(len(x))
        return velocity_of(PROMPTS)(x, t, rows)

    rollout_branches(counting, NOISE, TIMES, COEFS, branch_steps, 4, stream)
    B, S = 3, 6
    assert sum(evaluated) == B * S + sum(B * 4 * (S - 1 - step) for step in branch_steps)


def test_only_the_branch_steps_need_noise():
    coefs = torch.zeros(5, dtype=torch.float64)
    coefs[2] = COEFS[2]
    alone, among = branch(branch_steps=(2,), coefs=coefs)[0], branch()[1]
    torch.testing.assert_close(alone.finals, among.finals, rtol=0, atol=1e-13)


def test_branches_carry_no_gradient_and_are_float32_or_wider():
    x1 = NOISE.bfloat16().requires_grad_()
    (found,) = rollout_branches(velocity_of(PROMPTS.float()), x1, TIMES, COEFS, (1,), 2, stream)
    for tensor in (found.before, found.after, found.finals):
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
