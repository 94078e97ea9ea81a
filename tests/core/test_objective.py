import pytest
import torch

from chunk_grpo.core.chunking import listed_plan, single_plan, spread_to_steps, step_plan
from chunk_grpo.core.objective import (
    chunk_objective,
    clip_mask,
    clipped_objective,
    gradient_coefficients,
    kl_coefficients,
    step_objective,
)
from chunk_grpo.core.ratios import chunk_ratio
from tests.core.conftest import LinearPolicy, double, draw, objective_in_loops

PAPER_PLAN = listed_plan([2, 3, 4, 7], 16)


def test_clipped_objective_by_hand():
    ratio = double([1.2, 0.8], [1.2, 0.8])
    value = clipped_objective(ratio, double(2.0, -2.0), clip_range=0.1)
    # A = 2: min(2.4, 2.2), min(1.6, 1.8); A = -2: min(-2.4, -2.2), min(-1.6, -1.8)
    torch.testing.assert_close(value, double([2.2, 1.6], [-2.4, -1.8]), rtol=0, atol=1e-15)


def test_clip_mask_by_hand():
    ratio = double([1.2, 0.8, 1.05], [1.2, 0.8, 1.05])
    mask = clip_mask(ratio, double(2.0, -2.0), clip_range=0.1)
    assert mask.tolist() == [[False, True, True], [True, False, True]]


def test_step_objective_by_hand():
    new = double([1.2, 1.0], [0.8, 1.05]).log()
    value = step_objective(new, torch.zeros_like(new), double(2.0, -2.0), 0.1, double([1, 2], [3, 4]), 0.01)
    # surrogates 2.2, 2, -1.8, -2.1; KL mean 2.5
    assert value.item() == pytest.approx((2.2 + 2.0 - 1.8 - 2.1) / 4 - 0.01 * 2.5, abs=1e-14)


def test_chunk_objective_by_hand():
    # ratios: chunk of one 1.2; chunk of two sqrt(1.21 * 1) = 1.1 and, for the second row, 1 and .9
    new = double([1.2, 1.21, 1.0], [1.0, 0.81, 1.0]).log()
    kl = double([1, 2, 4], [0, 0, 6])
    value = chunk_objective(
        new, torch.zeros_like(new), double(1.0, -1.0), 0.15, listed_plan([1, 2], 3), kl, 0.01
    )
    # surrogates 1.15 (clipped), 1.1, -1, -.9; KL chunk means 1, 3, 0, 3
    assert value.item() == pytest.approx((1.15 + 1.1 - 1.0 - 0.9) / 4 - 0.01 * 7 / 4, abs=1e-14)


def test_two_steps_as_one_chunk_is_eq_9():
    # T = 2, one chunk: ratio sqrt(1.1 * .9), not the mean of two clipped terms
    new = double([1.1, 0.9]).log()
    value = chunk_objective(new, torch.zeros_like(new), double(1.0), 0.05, single_plan(2))
    assert value.item() == pytest.approx(0.99**0.5, abs=1e-15)
    assert step_objective(new, torch.zeros_like(new), double(1.0), 0.05).item() == pytest.approx(
        0.975, abs=1e-15
    )


def test_chunks_of_one_step_are_the_step_objective():
    new, old, a, kl = draw(3, 16), draw(3, 16, seed=1), draw(3, seed=2), draw(3, 16, seed=3).square()
    by_chunk = chunk_objective(new, old, a, 0.2, step_plan(16), kl, 0.1)
    assert by_chunk.item() == step_objective(new, old, a, 0.2, kl, 0.1).item()
    # Eq. (5) as it stands, without chunks
    ratio = (new - old).exp()
    by_step = torch.minimum(ratio * a[:, None], ratio.clamp(0.8, 1.2) * a[:, None]) - 0.1 * kl
    assert by_chunk.item() == pytest.approx(by_step.mean().item(), abs=1e-14)


def test_a_single_chunk_has_the_sequence_ratio():
    new, old, a = draw(3, 16), draw(3, 16, seed=1), draw(3, seed=2)
    sequence = ((new.sum(1) - old.sum(1)) / 16).exp()  # GSPO's: the likelihood ratio to the power 1 / N
    expected = torch.minimum(sequence * a, sequence.clamp(0.8, 1.2) * a).mean()
    value = chunk_objective(new, old, a, 0.2, single_plan(16))
    assert value.item() == pytest.approx(expected.item(), abs=1e-14)


@pytest.mark.parametrize(
    "plan", [PAPER_PLAN, step_plan(16), single_plan(16)], ids=["listed", "step", "single"]
)
def test_the_objective_is_that_of_plain_loops(plan):
    policy, advantage = LinearPolicy(6), draw(6, seed=3)
    (new, kl), old = policy.log_probs_and_kl(), policy.old_log_probs
    selected = draw(6, plan.num_chunks, seed=4) > -0.3
    selected[:, 0] = True
    steps = [
        list(range(first, first + size)) for first, size in zip(plan.first_steps, plan.sizes, strict=True)
    ]
    chunks = [[steps[chunk] for chunk in row.nonzero().flatten()] for row in selected]
    value = chunk_objective(new, old, advantage, 0.02, plan, kl, 0.3, selected)
    expected = objective_in_loops(new, old, advantage, 0.02, chunks, kl, 0.3)
    assert value.item() == pytest.approx(expected, abs=1e-13)


def test_selected_chunks_alone_count():
    new, old, a = draw(2, 5), draw(2, 5, seed=1), double(1.0, -0.5)
    plan, selected = listed_plan([2, 3], 5), torch.tensor([[True, False], [False, True]])
    surrogate = clipped_objective(chunk_ratio(new, old, plan), a, 0.2)
    expected = (surrogate[0, 0] + surrogate[1, 1]) / 2
    value = chunk_objective(new, old, a, 0.2, plan, selected=selected)
    assert value.item() == pytest.approx(expected.item(), abs=1e-15)


def test_each_trajectory_weighs_the_same_however_many_chunks_it_selects():
    new = double([1.1, 1.0], [1.0, 1.02]).log()
    selected = torch.tensor([[True, False], [True, True]])
    value = chunk_objective(
        new, torch.zeros_like(new), double(1.0, 1.0), 0.2, step_plan(2), selected=selected
    )
    assert value.item() == pytest.approx((1.1 + (1.0 + 1.02) / 2) / 2, abs=1e-15)


def test_selecting_all_is_selecting_none_out():
    new, old, a = draw(2, 5), draw(2, 5, seed=1), double(1.0, -0.5)
    plan = listed_plan([2, 3], 5)
    everything = chunk_objective(new, old, a, 0.2, plan, selected=torch.ones(2, 2, dtype=torch.bool))
    assert everything.item() == chunk_objective(new, old, a, 0.2, plan).item()


@pytest.mark.parametrize(
    "plan", [PAPER_PLAN, step_plan(16), single_plan(16)], ids=["listed", "step", "single"]
)
def test_gradient_coefficients_equal_autograd_with_clipping_and_kl(plan):
    batch, clip_range, kl_coef = 6, 0.02, 0.3
    policy, advantage = LinearPolicy(batch), draw(batch, seed=3)
    selected = draw(batch, plan.num_chunks, seed=4) > -0.3
    selected[:, 0] = True
    (new, kl), old = policy.log_probs_and_kl(), policy.old_log_probs
    mask = clip_mask(chunk_ratio(new, old, plan), advantage, clip_range) & selected
    assert 0 < mask.sum() < selected.sum()  # some chunks are clipped and some are not
    objective = chunk_objective(new, old, advantage, clip_range, plan, kl, kl_coef, selected)
    (expected,) = torch.autograd.grad(objective, policy.theta)

    coefs = gradient_coefficients(new, old, advantage, clip_range, plan, selected)
    kl_coefs = kl_coefficients(new, kl_coef, plan, selected)
    total = policy.gradient_item_by_item(coefs, kl_coefs)
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-12)
    assert not coefs.requires_grad


def test_coefficients_vanish_where_clipped_or_not_selected():
    new = double([1.5, 1.5, 1.0]).log()
    selected = torch.tensor([[True, False, True]])
    coefs = gradient_coefficients(new, torch.zeros_like(new), double(2.0), 0.1, step_plan(3), selected)
    assert coefs.tolist() == [[0.0, 0.0, 1.0]]  # A r / (B * 2 selected) = 2 / 2


def test_on_policy_chunks_are_step_level_with_weights_one_over_chunk_size():
    lp = torch.zeros(1, 16, dtype=torch.float64)
    by_chunk = gradient_coefficients(lp, lp, double(1.0), 0.1, PAPER_PLAN)
    by_step = gradient_coefficients(lp, lp, double(1.0), 0.1, step_plan(16))
    weights = spread_to_steps(double(16 / 8, 16 / 12, 16 / 16, 16 / 28), PAPER_PLAN)  # N / (K cs_j)
    torch.testing.assert_close(by_chunk / by_step, weights.unsqueeze(0), rtol=0, atol=1e-15)


def test_kl_coefficients_by_hand():
    coefs = kl_coefficients(torch.zeros(2, 3), 0.6, listed_plan([1, 2], 3))
    # -.6 / (B 2 * K 2 * cs)
    torch.testing.assert_close(coefs, torch.tensor([[-0.15, -0.075, -0.075]] * 2))


def test_ratios_must_be_a_matrix():
    with pytest.raises(ValueError, match=r"ratio must have shape \[B, N\] or \[B, K\], got \(3,\)"):
        clip_mask(torch.ones(3), torch.ones(3), 0.1)
