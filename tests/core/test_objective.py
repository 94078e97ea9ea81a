import pytest
import torch

from chunk_grpo.core.assignment import ChunkAssignment
from chunk_grpo.core.chunking import listed_plan, single_plan, step_plan
from chunk_grpo.core.objective import (
    Bounds,
    chunk_objective,
    clipped_chunks,
    clipped_terms,
    gradient_coefficients,
    masked_terms,
)
from chunk_grpo.core.ratios import chunk_ratio
from tests.core.conftest import LinearPolicy, double, draw, objective_in_loops, terms_of

PAPER_PLAN = listed_plan([2, 3, 4, 7], 16)
PLANS = {"listed": PAPER_PLAN, "step": step_plan(16), "single": single_plan(16)}
NAN = float("nan")


def steps(num_steps, batch=1):
    return ChunkAssignment.shared(step_plan(num_steps), batch)


def plans_of_all_kinds():
    """Six rows over 16 steps: four plans, a sliding window and two branches."""
    plans = [*PLANS.values(), listed_plan([5, 5, 5, 1], 16)]
    window = [-1] * 3 + [0, 0, 1, 1] + [-1] * 9
    branches = [0, -1, 1, 1] + [-1] * 12
    rows = [list(plan.chunk_of_step()) for plan in plans]
    return ChunkAssignment(torch.tensor([*rows, window, branches]))


def some_of(assignment):
    """The first and some other chunks of each row."""
    selected = (draw(*assignment.exists.shape, seed=4) > -0.3) & assignment.exists
    selected[:, 0] = True
    return selected


def test_clipped_terms_by_hand():
    ratio = double([1.2, 0.8], [1.2, 0.8])
    value = clipped_terms(ratio, terms_of(ratio, double(2.0, -2.0), steps(2, 2)), Bounds(0.1))
    # A = 2: min(2.4, 2.2), min(1.6, 1.8); A = -2: min(-2.4, -2.2), min(-1.6, -1.8)
    torch.testing.assert_close(value, double([2.2, 1.6], [-2.4, -1.8]), rtol=0, atol=1e-15)


def test_step_objective_by_hand():
    new = double([1.2, 1.0], [0.8, 1.05]).log()
    kl = double([1, 2], [3, 4])
    terms = terms_of(0 * new, double(2.0, -2.0), steps(2, 2))
    value = chunk_objective(new, terms, Bounds(0.1, 0.01), kl)
    # surrogates 2.2, 2, -1.8, -2.1; KL mean 2.5
    assert value.item() == pytest.approx((2.2 + 2.0 - 1.8 - 2.1) / 4 - 0.01 * 2.5, abs=1e-14)


def test_chunk_objective_by_hand():
    # ratios: chunk of one 1.2; chunk of two sqrt(1.21 * 1) = 1.1 and, for the second row, 1 and .9
    new = double([1.2, 1.21, 1.0], [1.0, 0.81, 1.0]).log()
    kl = double([1, 2, 4], [0, 0, 6])
    chunks = ChunkAssignment.shared(listed_plan([1, 2], 3), 2)
    value = chunk_objective(new, terms_of(0 * new, double(1.0, -1.0), chunks), Bounds(0.15, 0.01), kl)
    # surrogates 1.15 (clipped), 1.1, -1, -.9; KL chunk means 1, 3, 0, 3
    assert value.item() == pytest.approx((1.15 + 1.1 - 1.0 - 0.9) / 4 - 0.01 * 7 / 4, abs=1e-14)


def test_ragged_objective_by_hand():
    # row 0: chunks {0} and {1, 2} with ratios 1.2 and sqrt(1.21) = 1.1; row 1: chunk {1} with ratio .7
    new = double([1.2, 1.21, 1.0], [NAN, 0.7, NAN]).log()
    terms = terms_of(
        torch.zeros_like(new),
        double([2, 3], [-1, NAN]),
        ChunkAssignment(torch.tensor([[0, 1, 1], [-1, 0, -1]])),
        weights=double([0.5, 2], [4, NAN]),
        kl_weights=double([3, 1], [0.5, NAN]),
    )
    bounds = Bounds(double(0.05, 0.15), kl_coef=0.1)
    value = chunk_objective(new, terms, bounds, double([1, 2, 4], [NAN, 5, NAN]))
    # chunk 0, eps .05: min(2.4, 2.1) and min(-.7, -.95); chunk 1, eps .15: min(3.3, 3.45); KL 1, 3 and 5
    row_0 = (0.5 * 2.1 - 3 * 0.1 + 2 * 3.3 - 1 * 0.3) / 2
    assert value.item() == pytest.approx((row_0 - 4 * 0.95 - 0.5 * 0.5) / 2, abs=1e-14)


def test_two_steps_as_one_chunk_is_eq_9():
    # T = 2, one chunk: ratio sqrt(1.1 * .9), not the mean of two clipped terms
    new = double([1.1, 0.9]).log()
    chunk = ChunkAssignment.shared(single_plan(2), 1)
    value = chunk_objective(new, terms_of(0 * new, double(1.0), chunk), Bounds(0.05))
    assert value.item() == pytest.approx(0.99**0.5, abs=1e-15)
    value = chunk_objective(new, terms_of(0 * new, double(1.0), steps(2)), Bounds(0.05))
    assert value.item() == pytest.approx(0.975, abs=1e-15)  # Eq. (8)


@pytest.mark.parametrize("choose", [False, True], ids=["all", "selected"])
def test_objective_matches_plain_loops(choose):
    assignment, policy, advantage = plans_of_all_kinds(), LinearPolicy(6), draw(6, seed=3)
    (new, kl), old = policy.log_probs_and_kl(), policy.old_log_probs
    selected = some_of(assignment) if choose else None
    chunks = [
        [(row == number).nonzero().flatten().tolist() for number in chosen.nonzero().flatten()]
        for row, chosen in zip(assignment.chunk, selected if choose else assignment.exists, strict=True)
    ]
    value = chunk_objective(new, terms_of(old, advantage, assignment, selected), Bounds(0.02, 0.3), kl)
    expected = objective_in_loops(new, old, advantage, 0.02, chunks, kl, 0.3)
    assert value.item() == pytest.approx(expected, abs=1e-13)


def test_each_chunk_is_clipped_on_both_sides_by_its_own_range():
    new, a, ranges = double([1.2, 1.2], [0.8, 0.8]).log(), double(1, -1), double(0.1, 0.3)
    terms = terms_of(torch.zeros_like(new), a, steps(2, 2))
    value = chunk_objective(new, terms, Bounds(ranges))
    assert value.item() == pytest.approx((1.1 + 1.2 - 0.9 - 0.8) / 4, abs=1e-14)
    coefs, _ = gradient_coefficients(new, terms, Bounds(ranges))
    torch.testing.assert_close(coefs, double([0, 0.3], [0, -0.2]), rtol=0, atol=1e-14)


def test_gradient_coefficients_by_hand():
    new = double([1.2, 1.21, 1.0], [NAN, 0.7, NAN]).log()
    terms = terms_of(
        torch.zeros_like(new),
        double([2, 3], [1, NAN]),
        ChunkAssignment(torch.tensor([[0, 1, 1], [-1, 0, -1]])),
        weights=double([0.5, 2], [4, NAN]),
        kl_weights=double([3, 1], [0.5, NAN]),
    )
    coefs, kl_coefs = gradient_coefficients(new, terms, Bounds(double(0.15, 0.2), kl_coef=0.1))
    # chunk 0 of row 0 is clipped; chunk 1: w A r / (B n cs) = 2 * 3 * 1.1 / (2 * 2 * 2); row 1: 4 * .7 / 2
    torch.testing.assert_close(coefs, double([0, 0.825, 0.825], [0, 1.4, 0]), rtol=0, atol=1e-14)
    # -v beta / (B n cs)
    torch.testing.assert_close(kl_coefs, double([-0.075, -0.0125, -0.0125], [0, -0.025, 0]), rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("edge", [0.9, 1.0, 1.1])
def test_at_the_edges_of_the_clip_range_the_whole_gradient_passes(edge, dtype):
    """Both sides of the minimum are equal there, and autograd halves the gradient between them."""
    ratio = torch.tensor([[edge]], dtype=dtype, requires_grad=True)
    for a in (1.0, -1.0):
        terms = terms_of(ratio, torch.tensor([a], dtype=dtype), steps(1))
        surrogate = clipped_terms(ratio, terms, Bounds(0.1))
        assert torch.autograd.grad(surrogate.sum(), ratio)[0].item() == a
        assert not clipped_chunks(ratio, terms, Bounds(0.1)).any()


def test_divergence_masks_terms_that_move_away_by_hand():
    # Flow-DPPO, limit 0.1: by columns within it; beyond it and leading away; beyond it and leading back.
    ratio = double([1.2, 1.2, 0.8], [0.8, 0.8, 1.2]).requires_grad_()
    drift = double([0.05, 0.2, 0.2], [0.05, 0.2, 0.2])
    terms = terms_of(torch.zeros(2, 3), double(2.0, -3.0), steps(3, 2), drift=drift)
    surrogate = masked_terms(ratio, terms, Bounds(0.1))
    torch.testing.assert_close(surrogate, double([2.4, 2.4, 1.6], [-2.4, -2.4, -3.6]), rtol=0, atol=1e-14)
    (slope,) = torch.autograd.grad(surrogate.sum(), ratio)
    assert slope.tolist() == [[2.0, 0.0, 2.0], [-3.0, 0.0, -3.0]]


def test_the_divergence_of_a_chunk_is_the_mean_over_its_steps():
    new = double([1.2, 1.21, 1.0]).log()
    chunks = ChunkAssignment(torch.tensor([[0, 1, 1]]))
    drift = double([0.05, 0.0, 0.22])  # means 0.05 and 0.11
    terms, bounds = (terms_of(0 * new, double(1.0), chunks, drift=drift), Bounds(0.1, trust_region="divergence"))
    coefs, _ = gradient_coefficients(new, terms, bounds)
    torch.testing.assert_close(coefs, double([0.6, 0.0, 0.0]), rtol=0, atol=1e-14)  # A r / K
    assert clipped_chunks(chunk_ratio(new, 0 * new, chunks), terms, bounds).tolist() == [[False, True]]


@pytest.mark.parametrize("per_chunk", [False, True], ids=["one for all", "per chunk"])
@pytest.mark.parametrize("choose", [False, True], ids=["all", "selected"])
def test_the_coefficients_give_the_objectives_gradient_one_item_at_a_time(per_chunk, choose):
    assignment = plans_of_all_kinds()
    batch, most = 6, assignment.max_chunks
    policy = LinearPolicy(batch)
    (new, kl), old = policy.log_probs_and_kl(), policy.old_log_probs
    advantage = draw(batch, most, seed=3) if per_chunk else draw(batch, seed=3)
    clip_range = draw(most, seed=5).abs() * 0.03 + 0.001 if per_chunk else 0.02
    weights, kl_weights = (draw(batch, most, seed=s).exp() if per_chunk else None for s in (6, 7))
    selected = some_of(assignment) if choose else None
    terms = terms_of(old, advantage, assignment, selected, weights=weights, kl_weights=kl_weights)
    bounds = Bounds(clip_range, 0.3)
    value = chunk_objective(new, terms, bounds, kl)
    (expected,) = torch.autograd.grad(value, policy.theta)

    coefs, kl_coefs = gradient_coefficients(new, terms, bounds)
    trained = assignment.to_steps((assignment.exists if selected is None else selected).double()) > 0
    assert 0 < (coefs != 0).sum() < trained.sum()  # some chunks are clipped and some are not
    assert torch.equal(kl_coefs != 0, trained)
    total = policy.gradient_item_by_item(coefs, kl_coefs)
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-12)
    assert not coefs.requires_grad
    assert not kl_coefs.requires_grad


def test_clipped_chunks_by_hand():
    # eps .1: likelier than 1.1 counts where A > 0, rarer than .9 where A < 0; the last row has one chunk
    assignment = ChunkAssignment(torch.tensor([[0, 1, 2], [0, 1, 2], [0, -1, -1]]))
    ratio = double([1.2, 0.8, 1.05], [1.2, 0.8, 1.05], [0.5, NAN, NAN])
    clipped = clipped_chunks(ratio, terms_of(ratio, double(2, -2, -1), assignment), Bounds(0.1))
    assert clipped.tolist() == [[True, False, False], [False, True, False], [True, False, False]]
    per_chunk = double([-1, -1, 1], [1, 0, 1], [-1, NAN, NAN])
    clipped = clipped_chunks(ratio, terms_of(ratio, per_chunk, assignment), Bounds(double(0.1, 0.1, 0.01)))
    assert clipped.tolist() == [[False, True, True], [True, False, True], [True, False, False]]


def test_weights_and_advantages_are_constants():
    new = draw(2, 5).requires_grad_()
    a, weights = draw(2, 2, seed=1).requires_grad_(), draw(2, 2, seed=2).exp().requires_grad_()
    assignment = ChunkAssignment.shared(listed_plan([2, 3], 5), 2)
    chunk_objective(new, terms_of(new.detach(), a, assignment, weights=weights), Bounds(0.2)).backward()
    assert new.grad is not None
    assert a.grad is None
    assert weights.grad is None


def test_a_chunk_of_weight_0_counts_in_the_mean_alone():
    terms = terms_of(torch.zeros(1, 2, dtype=torch.float64), double(3), steps(2), weights=double([0, 2]))
    assert chunk_objective(double([0.0, 0.0]), terms, Bounds(0.2)).item() == 2 * 3 / 2


def test_nan_where_nothing_is_trained_reaches_neither_value_nor_gradient():
    assignment = ChunkAssignment(torch.tensor([[-1, 0, 1], [0, 0, -1]]))
    new, padding = draw(2, 3), draw(2, 2, seed=1).exp()
    clean = (new.clone(), padding.clone())
    new[0, 0] = new[1, 2] = padding[1, 1] = NAN
    values = []
    for lp, pad in ((new, padding), clean):
        lp.requires_grad_()
        old, kl = 0.9 * lp.detach(), lp.detach().square()
        terms, bounds = terms_of(old, pad, assignment, weights=pad), Bounds(0.2, 0.1)
        value = chunk_objective(lp, terms, bounds, kl)
        coefs = gradient_coefficients(lp, terms, bounds)
        values.append((value, *torch.autograd.grad(value, lp), *coefs))
    for with_nan, without in zip(*values, strict=True):
        assert with_nan.isfinite().all()
        assert torch.equal(with_nan, without)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_range": 0.0}, r"clip_range must be in \(0, 1\), got 0"),
        ({"clip_range": double(0.1, 1.0)}, r"clip_range must be in \(0, 1\), got \[0.1, 1.0\]"),
        ({"clip_range": double(0.1)}, r"one number or have shape \(2,\), got \(1,\)"),
        ({"kl_coef": -1.0}, "kl_coef must be at least 0, got -1"),
        ({"kl_coef": 0.1}, "kl must be given when kl_coef is positive, got kl_coef 0.1"),
        ({"selected": torch.tensor([[True, True], [False, False]])}, r"none selected in the rows \[1\]"),
        ({"selected": torch.tensor([[True, True], [True, True]])}, r"existing chunks only.* rows \[1\]"),
        ({"selected": torch.ones(2, 5, dtype=torch.bool)}, r"bool with shape \(2, 2\)"),
        ({"selected": torch.ones(2, 2)}, "must be bool .* got torch.float32"),
        ({"advantage": torch.ones(3)}, r"shape \(2,\) or \(2, 2\), got \(3,\)"),
        ({"weights": torch.ones(2)}, r"weights must have shape \(2, 2\), got \(2,\)"),
        ({"weights": torch.tensor([[1.0, -0.5], [1.0, 0.0]])}, "at least 0, got -0.5"),
        ({"weights": torch.tensor([[1.0, NAN], [1.0, 0.0]])}, "at least 0, got nan"),
        ({"log_probs": torch.zeros(2, 4), "old_log_probs": torch.zeros(2, 4)}, r"\(2, 5\), got \(2, 4\)"),
        (
            {"assignment": ChunkAssignment(torch.tensor([[0, 1, 1, 1, 1], [-1, -1, -1, -1, -1]]))},
            r"at least one chunk, got none selected in the rows \[1\]",
        ),
    ],
)
def test_bad_arguments_are_refused(options, message):
    arguments = {
        "log_probs": torch.zeros(2, 5),
        "old_log_probs": torch.zeros(2, 5),
        "advantage": torch.ones(2),
        "clip_range": 0.1,
        "assignment": ChunkAssignment(torch.tensor([[0, 0, 1, 1, 1], [-1, 0, 0, -1, -1]])),
    } | options
    log_probs = arguments.pop("log_probs")
    bounds = Bounds(arguments.pop("clip_range"), arguments.pop("kl_coef", 0.0))
    terms = terms_of(**arguments)
    with pytest.raises(ValueError, match=message):
        chunk_objective(log_probs, terms, bounds)
    if message.startswith("kl must"):
        return
    with pytest.raises(ValueError, match=message):
        gradient_coefficients(log_probs, terms, bounds)


def test_limited_divergences_need_drift():
    terms = terms_of(torch.zeros(1, 2), torch.ones(1), steps(2))
    with pytest.raises(ValueError, match="drift must be given with trust_region divergence"):
        chunk_objective(torch.zeros(1, 2), terms, Bounds(0.1, trust_region="divergence"))


@pytest.mark.parametrize("function", [clipped_terms, clipped_chunks])
def test_ratios_must_fit_the_assignment(function):
    with pytest.raises(ValueError, match=r"ratio must have shape \(6, 16\), got \(6, 4\)"):
        function(torch.ones(6, 4), terms_of(torch.ones(6, 16), torch.ones(6), plans_of_all_kinds()), Bounds(0.1))
