import math

import pytest
import torch

from chunk_grpo.core.chunk_sampling import chunk_weights, num_selected, select_chunks
from chunk_grpo.core.chunking import listed_plan, step_plan

PLAN = listed_plan([2, 3, 4, 7], 16)


def seed(value):
    return torch.Generator().manual_seed(value)


def inclusion_by_enumeration(weights, count):
    """Chance of each item to be among `count` draws without replacement."""
    if count == 0:
        return [0.0] * len(weights)
    total, chances = sum(weights), [0.0] * len(weights)
    for first, weight in enumerate(weights):
        rest = [0.0 if item == first else other for item, other in enumerate(weights)]
        if weight > 0:
            chances[first] += weight / total
            for item, chance in enumerate(inclusion_by_enumeration(rest, count - 1)):
                chances[item] += weight / total * chance
    return chances


def test_weights_of_the_papers_plan_by_hand():
    profile = [0.8, 0.6] + [0.5] * 3 + [0.4] * 4 + [0.2] * 7
    mean = (1.4 + 1.5 + 1.6 + 1.4) / 16
    expected = [0.7 / mean, 0.5 / mean, 0.4 / mean, 0.2 / mean]
    assert chunk_weights(profile, PLAN).tolist() == pytest.approx(expected, abs=1e-12)


def test_weights_of_a_flat_profile_are_one():
    assert chunk_weights([0.3] * 16, PLAN).tolist() == pytest.approx([1.0] * 4, abs=1e-12)


def test_weights_average_to_one_over_steps():
    profile = torch.rand(16, generator=seed(0)).add(0.1).tolist()
    weights = chunk_weights(profile, PLAN).tolist()
    assert sum(w * size for w, size in zip(weights, PLAN.sizes, strict=True)) / 16 == pytest.approx(
        1, abs=1e-12
    )


def test_an_ode_profile_inverts_the_weights():
    # The SDE's curve falls from noise to image, the ODE's rises.
    falling = chunk_weights([1 / (step + 1) for step in range(16)], PLAN).tolist()
    rising = chunk_weights([0.02 + 0.018 * step for step in range(16)], PLAN).tolist()
    assert falling == sorted(falling, reverse=True)
    assert rising == sorted(rising)


@pytest.mark.parametrize(
    ("num_chunks", "fraction", "count"), [(4, 0.5, 2), (16, 0.5, 8), (5, 0.5, 2), (4, 1.0, 4)]
)
def test_fraction_is_rounded_down(num_chunks, fraction, count):
    assert num_selected(num_chunks, fraction) == count


@pytest.mark.parametrize(
    ("num_chunks", "fraction", "message"),
    [
        (4, 0.0, r"fraction must be in \(0, 1\], got 0"),
        (4, 1.5, r"fraction must be in \(0, 1\], got 1.5"),
        (1, 0.5, r"int\(1 chunks \* 0.5\) = 0; use at least 1"),
    ],
)
def test_fraction_must_leave_a_chunk(num_chunks, fraction, message):
    with pytest.raises(ValueError, match=message):
        num_selected(num_chunks, fraction)


def test_each_trajectory_draws_its_own_distinct_chunks():
    selected = select_chunks(PLAN, 0.5, None, batch=200, generator=seed(0))
    assert selected.dtype == torch.bool
    assert selected.sum(dim=1).tolist() == [2] * 200  # a repeated chunk would leave one true
    assert len({tuple(row) for row in selected.tolist()}) == 6  # all pairs of four occur


def test_same_seed_same_selection():
    weights = torch.tensor([4.0, 3.0, 2.0, 1.0])
    first = select_chunks(PLAN, 0.5, weights, 20, seed(1))
    assert torch.equal(first, select_chunks(PLAN, 0.5, weights, 20, seed(1)))
    assert not torch.equal(first, select_chunks(PLAN, 0.5, weights, 20, seed(2)))


def test_one_draw_follows_the_weights():
    draws = 20000
    selected = select_chunks(step_plan(2), 0.5, torch.tensor([3.0, 1.0]), draws, seed(0))
    assert abs(selected[:, 0].double().mean().item() - 0.75) < 4 * math.sqrt(0.75 * 0.25 / draws)


def test_inclusion_is_that_of_successive_draws_and_not_proportional():
    weights, draws = [1.75, 1.07, 0.83, 0.85], 40000
    chances = inclusion_by_enumeration(weights, 2)
    rates = select_chunks(PLAN, 0.5, torch.tensor(weights), draws, seed(0)).double().mean(dim=0)
    for rate, chance in zip(rates.tolist(), chances, strict=True):
        assert abs(rate - chance) < 4 * math.sqrt(chance * (1 - chance) / draws)
    assert chances[0] / chances[2] < 0.85 * weights[0] / weights[2]


def test_no_weights_is_uniform():
    draws = 20000
    rates = select_chunks(PLAN, 0.5, None, draws, seed(0)).double().mean(dim=0)
    assert bool(((rates - 0.5).abs() < 4 * math.sqrt(0.25 / draws)).all())


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, math.nan]])
def test_bad_weights_are_refused(weights):
    with pytest.raises(ValueError, match="weights must be 4 positive numbers, got"):
        select_chunks(PLAN, 0.5, torch.tensor(weights), 2, seed(0))


def test_bad_profile_is_refused():
    with pytest.raises(ValueError, match="profile values must be positive and finite"):
        chunk_weights([0.3] * 15 + [0.0], PLAN)
    with pytest.raises(ValueError, match="covers 16 steps, but the values have 17"):
        chunk_weights([0.3] * 17, PLAN)
