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

PAPER_PLAN = listed_plan([2, 3, 4, 7], 16)


def double(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


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
    features, noise = draw(batch, 16, 4), draw(batch, 16, seed=1)
    old = (features @ draw(4, seed=2)).detach() + 0.2 * noise
    advantage = draw(batch, seed=3)
    selected = draw(batch, plan.num_chunks, seed=4) > -0.3
    selected[:, 0] = True
    theta = draw(4, seed=2).requires_grad_()

    def log_probs_and_kl():
        return features @ theta, (features @ (theta - 0.5)).square()

    new, kl = log_probs_and_kl()
    mask = clip_mask(chunk_ratio(new, old, plan), advantage, clip_range) & selected
    assert 0 < mask.sum() < selected.sum()  # some chunks are clipped and some are not
    objective = chunk_objective(new, old, advantage, clip_range, plan, kl, kl_coef, selected)
    (expected,) = torch.autograd.grad(objective, theta)

    coefs = gradient_coefficients(new, old, advantage, clip_range, plan, selected)
    kl_coefs = kl_coefficients(new, kl_coef, plan, selected)
    total = torch.zeros_like(theta)
    for row in range(batch):  # one (sample, step) at a time, as the update does
        for step in range(16):
            new, kl = log_probs_and_kl()
            item = coefs[row, step] * new[row, step] + kl_coefs[row, step] * kl[row, step]
            total += torch.autograd.grad(item, theta)[0]
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_range": 0.0}, r"clip_range must be in \(0, 1\), got 0"),
        ({"kl_coef": -1.0}, "kl_coef must be at least 0, got -1"),
        ({"kl_coef": 0.1}, "kl must be given when kl_coef is positive, got kl_coef 0.1"),
        ({"selected": torch.tensor([[True, True], [False, False]])}, "at least one chunk in every row"),
        ({"selected": torch.ones(2, 5, dtype=torch.bool)}, r"bool with shape \(2, 2\)"),
        ({"advantage": torch.ones(3)}, r"shape \[B\].*got \(3,\) and \(2, 2\)"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    arguments = {
        "log_probs": torch.zeros(2, 5),
        "old_log_probs": torch.zeros(2, 5),
        "advantage": torch.ones(2),
        "clip_range": 0.1,
        "plan": listed_plan([2, 3], 5),
    }
    with pytest.raises(ValueError, match=message):
        chunk_objective(**(arguments | options))
