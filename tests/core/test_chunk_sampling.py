import itertools
import math
import time

import pytest
import torch

from chunk_grpo.core.chunk_sampling import (
    annealed_exponent,
    chunk_weights,
    importance_weights,
    inclusion_probabilities,
    num_selected,
    select_chunks,
    tempered_weights,
)
from chunk_grpo.core.chunking import listed_plan
from tests.core.conftest import double

PLAN = listed_plan([2, 3, 4, 7], 16)


def seed(value):
    return torch.Generator().manual_seed(value)


def draw_chances(weights, count):
    """Each set of `count` chunks with its chance, summed over the orders in which it can be drawn."""
    chances = {}
    for order in itertools.permutations(range(len(weights)), count):
        chance, left = 1.0, sum(weights)
        for chunk in order:
            chance, left = chance * weights[chunk] / left, left - weights[chunk]
        chances[frozenset(order)] = chances.get(frozenset(order), 0.0) + chance
    return chances


def inclusion_by_enumeration(weights, count):
    """Chance of each chunk to be among `count` draws without replacement."""
    chances = draw_chances(weights, count).items()
    return [sum(chance for drawn, chance in chances if chunk in drawn) for chunk in range(len(weights))]


def test_weights_of_the_papers_plan_by_hand():
    profile = [0.8, 0.6] + [0.5] * 3 + [0.4] * 4 + [0.2] * 7
    mean = (1.4 + 1.5 + 1.6 + 1.4) / 16
    expected = [0.7 / mean, 0.5 / mean, 0.4 / mean, 0.2 / mean]
    assert chunk_weights(profile, PLAN).tolist() == pytest.approx(expected, abs=1e-12)


def test_an_ode_profile_inverts_the_weights():
    # The SDE's curve falls from noise to image, the ODE's rises.
    falling = chunk_weights([1 / (step + 1) for step in range(16)], PLAN).tolist()
    rising = chunk_weights([0.02 + 0.018 * step for step in range(16)], PLAN).tolist()
    assert falling == sorted(falling, reverse=True)
    assert rising == sorted(rising)


@pytest.mark.parametrize(("num_chunks", "fraction", "count"), [(4, 0.5, 2), (16, 0.5, 8), (5, 0.5, 2), (4, 1.0, 4)])
def test_fraction_is_rounded_down(num_chunks, fraction, count):
    assert num_selected(num_chunks, fraction) == count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("num_chunks", "fraction"), [(2, 0.5), (4, 0.5), (4, 1.0), (16, 0.5), (16, 0.1), (49, 0.5)])
@pytest.mark.parametrize("rows", ["equal", "alike", "their own", "transposed"])
def test_rows_without_zeros_get_what_multinomial_gives_them(num_chunks, fraction, rows, dtype):
    noise = torch.randn(64, num_chunks, generator=seed(3), dtype=dtype)
    weights = (0 * noise if rows == "equal" else noise[:1].expand(64, -1) if rows == "alike" else noise).exp()
    given = weights.T.contiguous().T if rows == "transposed" else weights  # the same, laid out otherwise
    count = num_selected(num_chunks, fraction)
    for value in range(5):
        drawn = torch.multinomial(weights, count, replacement=False, generator=seed(value))
        expected = torch.zeros(64, num_chunks, dtype=torch.bool).scatter_(1, drawn, True)
        generator = seed(value)
        assert torch.equal(select_chunks(given, fraction, generator), expected)
        again = torch.multinomial(weights, count, replacement=False, generator=generator)
        assert not torch.equal(again, drawn)  # the generator has moved on


def test_inclusion_matches_successive_draws_not_proportional_rates():
    weights, draws = [1.75, 1.07, 0.83, 0.85], 40000
    chances = inclusion_by_enumeration(weights, 2)
    rates = select_chunks(double(*weights).expand(draws, -1), 0.5, seed(0)).double().mean(dim=0)
    for rate, chance in zip(rates.tolist(), chances, strict=True):
        assert abs(rate - chance) < 4 * math.sqrt(chance * (1 - chance) / draws)
    assert chances[0] / chances[2] < 0.85 * weights[0] / weights[2]


def test_chunks_of_no_weight_are_never_drawn_and_do_not_count():
    rows = torch.tensor([[1.0, 1, 1, 1, 1], [2, 3, 0, 0, 0], [0, 5, 0, 1, 1], [0, 0, 0, 0, 1e-30]])
    selected = select_chunks(rows[:3].repeat(500, 1), 0.7, seed(0)).reshape(500, 3, 5)
    assert not selected[:, rows[:3] == 0].any()
    assert selected.sum(dim=2).unique(dim=0).tolist() == [[3, 1, 2]]  # int(.7 * 5), int(.7 * 2), int(.7 * 3)
    whole = select_chunks(rows, 1.0, seed(0))
    assert torch.equal(whole, rows > 0)
    smallest = double([0.0, 0.0, 5e-324]).repeat(100, 1)  # over noise it may round to 0
    assert torch.equal(select_chunks(smallest, 1.0, seed(0)), smallest > 0)


def test_inclusion_by_hand():
    # K = 2: one draw has the weights' own chances, two draws take both.
    assert inclusion_probabilities(double(3.0, 1.0), 1).tolist() == pytest.approx([0.75, 0.25], abs=1e-10)
    assert inclusion_probabilities(double(3.0, 1.0), 2).tolist() == pytest.approx([1.0, 1.0], abs=1e-10)
    # K = 3, two draws from 3, 2, 1: chunk 0 first 1/2, or after chunk 1 (1/3 * 3/4), or after chunk 2 (1/6 * 3/5).
    expected = [1 / 2 + 1 / 4 + 1 / 10, 1 / 3 + 1 / 2 * 2 / 3 + 1 / 6 * 2 / 5, 1 / 6 + 1 / 2 / 3 + 1 / 3 / 4]
    assert inclusion_probabilities(double(3.0, 2.0, 1.0), 2).tolist() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("weights", "scale"),
    [([0.3, 2.0, 0.7, 1.1, 5.0], 1.0), ([1.0, 1e4, 3.0, 100.0, 1e4], 1.0), ([1.0, 1e4, 3.0, 100.0, 1e4], 1e-30)],
)
def test_inclusion_matches_enumeration_of_ordered_draws(weights, scale):
    chances = inclusion_probabilities(double(*weights) * scale, 3)
    assert chances.tolist() == pytest.approx(inclusion_by_enumeration(weights, 3), rel=1e-10)


@pytest.mark.parametrize(("num_chunks", "count"), [(1, 1), (4, 2), (7, 7), (49, 24)])
def test_inclusion_of_equal_weights_is_the_fraction(num_chunks, count):
    chances = inclusion_probabilities(torch.full((num_chunks,), 0.3), count)
    assert chances.dtype == torch.float64
    assert chances.tolist() == pytest.approx([count / num_chunks] * num_chunks, abs=1e-10)


def test_inclusion_of_49_chunks_sums_to_the_count_and_is_fast():
    weights = torch.logspace(0, 4, 49, dtype=torch.float64)
    start = time.perf_counter()
    chances = inclusion_probabilities(weights, 24)
    assert time.perf_counter() - start < 5  # a tenth of a second; enumeration would never end
    assert chances.sum().item() == pytest.approx(24, abs=1e-10)
    assert chances.tolist() == sorted(chances.tolist())


def test_importance_weights_make_the_selected_mean_unbiased():
    weights, values = [1.75, 1.07, 0.83, 0.85, 0.2], [0.4, -1.0, 2.0, 0.3, 5.0]
    factors = importance_weights(double(*weights), 3).tolist()
    expectation, plain = 0.0, 0.0
    for drawn, chance in draw_chances(weights, 3).items():
        expectation += chance * sum(factors[chunk] * values[chunk] for chunk in drawn) / 3
        plain += chance * sum(values[chunk] for chunk in drawn) / 3
    assert expectation == pytest.approx(sum(values) / 5, abs=1e-10)
    assert abs(plain - sum(values) / 5) > 0.2  # without the factors it is biased


def test_tempered_weights_by_hand():
    weights = double(16.0, 4.0, 1.0)
    # roots 4, 2, 1 with mean 7/3; exponent 1 keeps the proportions, 0 makes them equal
    assert tempered_weights(weights, 0.5).tolist() == pytest.approx([12 / 7, 6 / 7, 3 / 7], abs=1e-12)
    assert tempered_weights(weights, 1).tolist() == pytest.approx([16 / 7, 4 / 7, 1 / 7], abs=1e-12)
    assert tempered_weights(weights, 0).tolist() == [1.0, 1.0, 1.0]
    rows = torch.stack([weights, 2 * weights.flip(0)])
    assert torch.equal(tempered_weights(rows, 0.5)[1].flip(0), tempered_weights(weights, 0.5))


def test_the_exponent_falls_linearly_over_the_run():
    assert [annealed_exponent(iteration, 5) for iteration in range(1, 6)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert annealed_exponent(1, 1) == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: num_selected(4, 0.0), r"fraction must be in \(0, 1\], got 0"),
        (lambda: num_selected(4, 1.5), r"fraction must be in \(0, 1\], got 1.5"),
        (lambda: num_selected(1, 0.5), r"int\(1 chunks \* 0.5\) = 0; use at least 1"),
        (lambda: chunk_weights([0.3] * 15 + [0.0], PLAN), "profile values must be positive and finite"),
        (lambda: chunk_weights([0.3] * 17, PLAN), "covers 16 steps, but the values have 17"),
        (lambda: inclusion_probabilities(torch.ones(4), 0), "from 1 to the number of chunks 4, got 0"),
        (lambda: inclusion_probabilities(torch.ones(4), 5), "from 1 to the number of chunks 4, got 5"),
        (lambda: tempered_weights(torch.ones(3), -0.1), r"exponent must be in \[0, 1\], got"),
        (lambda: tempered_weights(torch.ones(3), 1.1), r"exponent must be in \[0, 1\], got"),
        (lambda: tempered_weights(torch.ones(3), math.nan), r"exponent must be in \[0, 1\], got"),
        (lambda: annealed_exponent(0, 5), "iteration must be from 1 to 5, got 0"),
        (lambda: annealed_exponent(6, 5), "iteration must be from 1 to 5, got 6"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[1.0, 1.0], [1.0, -0.5]], r"weights must be finite and at least 0, got \[-0.5\]"),
        ([[1.0, math.nan]], r"finite and at least 0, got \[nan\]"),
        ([[1.0, math.inf]], r"finite and at least 0, got \[inf\]"),
        ([[1.0, 1.0], [0.0, 0.0]], r"every row of weights needs a positive one, got none in the rows \[1\]"),
        ([1.0, 1.0], r"shape \[B, K\], B and K at least 1, got shape \(2,\)"),
        ([[]], r"got shape \(1, 0\)"),
        ([[1.0, 1.0], [0.0, 1.0]], r"at least one chunk: int\(1 chunks \* 0.5\) = 0; use at least 1"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        select_chunks(torch.tensor(weights), 0.5, seed(0))


@pytest.mark.parametrize("weights", [[], [1.0, 0.0], [1.0, math.inf]])
@pytest.mark.parametrize("function", [inclusion_probabilities, importance_weights, tempered_weights])
def test_weights_that_are_not_positive_are_refused(function, weights):
    with pytest.raises(ValueError, match=r"weights must be \[..., K\] positive numbers, got"):
        function(torch.tensor(weights), 1)


def test_inclusion_is_of_one_row_of_weights():
    with pytest.raises(ValueError, match=r"weights must be \[K\] positive numbers, got shape \(1, 2\)"):
        inclusion_probabilities(torch.ones(1, 2), 1)
