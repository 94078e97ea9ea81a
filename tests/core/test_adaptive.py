import math
from itertools import pairwise

import pytest
import torch

from chunk_grpo.core.adaptive import adaptive_plan
from chunk_grpo.core.chunking import single_plan, step_plan


def random_curve(seed):
    generator = torch.Generator().manual_seed(seed)
    num_steps = int(torch.randint(1, 25, (), generator=generator))
    curve = torch.rand(num_steps, dtype=torch.float64, generator=generator) + 0.1
    return (curve.cumsum(0) if seed % 3 == 0 else curve).tolist()


@pytest.mark.parametrize(
    ("curve", "max_size", "sizes"),
    [
        ([3, 2, 1, 2, 3], 3, (3, 2)),  # differences - - + +; the bottom is where the last fall ends
        ([3, 2, 1, 2, 3], 2, (1, 2, 2)),  # 3 2 1 has second difference 0: halves, the later longer
        ([1, 2, 4, 8, 16], 3, (2, 3)),  # monotone: halves
        ([16, 8, 4, 2, 1], 3, (2, 3)),
        ([1, 2, 4, 8, 16], 2, (2, 1, 2)),  # 4 8 16 has the one second difference 4: halves again
        # rising, so halves; 0 1 3 3.5 then has second differences 1 -1.5, and 4 5 5.5 7 has -.5 1
        ([0, 1, 3, 3.5, 4, 5, 5.5, 7], 3, (3, 1, 3, 1)),
        # first: + for the seven steps up to 26, then -; second, of the seven: 1 3 2 -1 -1 at their steps 2..6, so
        # 5 + 2; third, of 0 1 3 8 15: 2 -1 at its steps 3 and 4, so 4 + 1
        ([0, 1, 3, 8, 15, 21, 26, 25, 24], 4, (4, 1, 2, 2)),
        ([0.3] * 7, 2, (1, 2, 2, 2)),  # 3 + 4, then 1 + 2 and 2 + 2
        ([1, 1, 2, 2, 1, 1], 4, (4, 2)),  # 0 + 0 - 0: zeros take the sign before, leading ones the sign after
        ([1, 2, 1, 2, 1], 2, (2, 1, 1, 1)),
    ],
)
def test_plans_by_hand(curve, max_size, sizes):
    assert adaptive_plan(curve, max_size).sizes == sizes


def test_rounding_of_a_straight_line_is_no_curvature():
    profile = [0.1 * (step + 1) for step in range(8)]
    second = [profile[i] - 2 * profile[i + 1] + profile[i + 2] for i in range(6)]
    assert min(second) < 0 < max(second)
    assert adaptive_plan(profile, 3).sizes == (2, 2, 2, 2)


@pytest.mark.parametrize("max_size", [1, 2, 3, 4, 8])
def test_random_curves(max_size):
    for seed in range(200):
        curve = random_curve(seed)
        plan = adaptive_plan(curve, max_size)
        assert plan.num_steps == len(curve)
        assert max(plan.sizes) <= max_size
        assert adaptive_plan([3 * value + 0.5 for value in curve], max_size) == plan
        if len(curve) > max_size:  # every turn of the curve opens a chunk
            falls = [after < before for before, after in pairwise(curve)]
            turns = {step + 1 for step in range(1, len(falls)) if falls[step] != falls[step - 1]}
            assert turns <= set(plan.first_steps)
        else:
            assert plan == single_plan(len(curve))
        if max_size == 1:
            assert plan == step_plan(len(curve))


@pytest.mark.parametrize(
    ("profile", "max_size", "message"),
    [
        ([], 1, r"at least one value, all finite, got \[\]"),
        ([1.0, math.nan], 1, "all finite, got"),
        ([1.0, math.inf], 1, "all finite, got"),
        ([1.0, 2.0], 0, "max_size must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(profile, max_size, message):
    with pytest.raises(ValueError, match=message):
        adaptive_plan(profile, max_size)
