import math
from itertools import combinations, pairwise

import pytest
import torch

from chunk_grpo.core.chunking import (
    ChunkPlan,
    boundary_shift,
    chunk_means,
    equal_plan,
    guided_plan,
    listed_plan,
    single_plan,
    step_plan,
)

PLAN = listed_plan([2, 3, 4, 7], num_sde_steps=16)


def line_error(y):
    """Squared error of the best line, by QR instead of the closed form."""
    x = torch.stack([torch.arange(len(y)), torch.ones(len(y))], dim=1).double()
    target = torch.tensor(y, dtype=torch.float64).unsqueeze(1)
    return (x @ torch.linalg.lstsq(x, target).solution - target).square().sum().item()


def best_by_enumeration(profile, num_chunks):
    y, best = [math.log(value) for value in profile], (math.inf, ())
    for cuts in combinations(range(1, len(y)), num_chunks - 1):
        bounds = [0, *cuts, len(y)]
        pairs = list(pairwise(bounds))
        if min(b - a for a, b in pairs) >= 2:
            best = min(best, (sum(line_error(y[a:b]) for a, b in pairs), tuple(b - a for a, b in pairs)))
    return best[1]


def test_the_papers_plan_by_hand():
    assert (PLAN.num_chunks, PLAN.num_steps) == (4, 16)
    assert PLAN.first_steps == (0, 2, 5, 9)
    assert PLAN.chunk_of_step() == (0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3)


def test_the_papers_plan_covers_16_trainable_steps_and_not_17():
    with pytest.raises(ValueError, match=r"must sum to .* 17 .* got \[2, 3, 4, 7\], which sum to 16"):
        listed_plan([2, 3, 4, 7], num_sde_steps=17)


@pytest.mark.parametrize(
    ("size", "num_steps", "sizes"), [(4, 16, (4, 4, 4, 4)), (12, 24, (12, 12)), (5, 16, (5, 5, 5, 1)), (16, 16, (16,))]
)
def test_equal_chunks_of_table_3(size, num_steps, sizes):
    assert equal_plan(size, num_steps).sizes == sizes


def test_step_and_single_plans_are_the_two_limits():
    assert step_plan(3).sizes == (1, 1, 1) == equal_plan(1, 3).sizes
    assert single_plan(3).sizes == (3,) == equal_plan(3, 3).sizes


def test_guided_plan_finds_exact_kinks():
    pieces = [(3, -1.0, -0.5), (4, -3.0, 0.2), (5, -1.0, -0.1)]  # size, level and slope of the logarithm
    profile = [math.exp(level + slope * i) for size, level, slope in pieces for i in range(size)]
    assert guided_plan(profile, 3).sizes == (3, 4, 5)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("num_chunks", [1, 2, 3, 4])
def test_guided_plan_is_the_optimum_of_all_splits(seed, num_chunks):
    profile = torch.rand(10, generator=torch.Generator().manual_seed(seed)).add(0.1).tolist()
    assert guided_plan(profile, num_chunks).sizes == best_by_enumeration(profile, num_chunks)


def test_guided_plan_breaks_ties_by_the_longer_last_chunk():
    assert guided_plan([1.0] * 6, 2).sizes == (2, 4)


def test_boundary_shift_by_hand():
    # boundaries 2, 5, 9 and 4, 8, 12: shifts 2, 3 and 3; the outer ends do not count
    other = listed_plan([4, 4, 4, 4], 16)
    assert boundary_shift(PLAN, other) == boundary_shift(other, PLAN) == pytest.approx(8 / 3, abs=1e-15)
    # boundary 3 against 2 and 8 against 9: opposite shifts do not cancel
    assert boundary_shift(listed_plan([3, 5, 2], 10), listed_plan([2, 7, 1], 10)) == 1.0
    assert boundary_shift(single_plan(16), single_plan(16)) == 0.0


def test_chunk_means_by_hand():
    values, plan = torch.tensor([[1.0, 3.0, 6.0, 7.0, 8.0]]), listed_plan([2, 3], 5)
    assert chunk_means(values, plan).tolist() == [[2.0, 7.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ChunkPlan(()), "at least one chunk, each of at least 1 step, got"),
        (lambda: ChunkPlan((2, 0, 3)), "each of at least 1 step, got"),
        (lambda: equal_plan(0, 16), "from 1 to the number of trainable steps 16, got 0"),
        (lambda: equal_plan(17, 16), "from 1 to the number of trainable steps 16, got 17"),
        (lambda: guided_plan([1.0] * 7, 4), r"num_chunks must be from 1 to 3 .* got 4"),
        (lambda: guided_plan([1.0] * 7, 0), "got 0"),
        (lambda: guided_plan([1.0, 0.0, 1.0], 1), "positive and finite, got"),
        (lambda: guided_plan([1.0, math.nan, 1.0], 1), "positive and finite, got"),
        (lambda: boundary_shift(PLAN, ChunkPlan((2, 3, 4, 8))), r"same .* and steps, got \(2, 3, 4, 7\)"),
        (lambda: boundary_shift(PLAN, ChunkPlan((5, 4, 7))), r"same numbers of chunks and steps, got"),
        (lambda: chunk_means(torch.ones(4), listed_plan([2, 3], 5)), "covers 5 steps, but the values have 4"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
