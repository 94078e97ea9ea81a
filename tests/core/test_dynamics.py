import math

import pytest
import torch

from chunk_grpo.core.dynamics import profile_drift, relative_l1
from tests.core.conftest import double, draw


def test_relative_l1_by_hand():
    # |1-3| + |1+1| = 4 over 3 + 1 = 4; then |0-1| + |1-1| = 1 over 2
    states = torch.tensor([[3.0, -1.0], [1.0, 1.0], [0.0, 1.0]]).reshape(1, 3, 1, 2)
    assert relative_l1(states).tolist() == [[1.0, 0.5]]
    # summed over tokens too before dividing: token 0 from 1 to 2, token 1 stays 3: 1 / 4, not the mean of 1 and 0
    assert relative_l1(torch.tensor([[1.0, 3.0], [2.0, 3.0]]).reshape(1, 2, 2, 1)).item() == 0.25


def test_shrinking_by_a_factor_is_one_minus_the_factor():
    x = draw(2, 1, 3, 4)
    states = torch.cat([x, 0.8 * x, 0.8 * 0.3 * x], dim=1)
    torch.testing.assert_close(relative_l1(states), double([0.2, 0.7], [0.2, 0.7]), rtol=0, atol=1e-15)


def test_profile_drift_by_hand():
    # |log 2|, |log 1|, |log 1/4| = 2 log 2: their mean is log 2
    assert profile_drift([0.4, 0.3, 0.05], [0.2, 0.3, 0.2]) == pytest.approx(math.log(2), abs=1e-15)
    assert profile_drift([0.2, 0.3, 0.2], [0.4, 0.3, 0.05]) == pytest.approx(math.log(2), abs=1e-15)


def with_value(value):
    """Three states of ones, the second with one other value."""
    states = torch.ones(1, 3, 3, 4)
    states[0, 1, 2, 3] = value
    return states


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: relative_l1(torch.ones(2, 1, 3, 4)), r"S >= 1, got \(2, 1, 3, 4\)"),
        (lambda: relative_l1(torch.ones(3, 4)), r"\[B, S \+ 1, L, D\]"),
        (lambda: relative_l1(torch.zeros(1, 2, 3, 4)), r"before step 0 of trajectory 0 must have .*, got 0\.0$"),
        (lambda: relative_l1(with_value(math.nan)), r"before step 1 of trajectory 0 .*, got nan$"),
        (lambda: relative_l1(with_value(math.inf)), r"before step 1 of trajectory 0 .*, got inf$"),
        (lambda: profile_drift([0.1, 0.0], [0.1, 0.1]), r"profile values must be positive .* got \[0"),
        (lambda: profile_drift([0.1, math.inf], [0.1, 0.1]), "profile values must be positive and finite"),
        (lambda: profile_drift([0.1, 0.1], [0.1, math.nan]), "reference values must be positive and finite"),
        (lambda: profile_drift([0.1, 0.1], [0.1]), "same number of steps, at least 1, got 2 and 1"),
        (lambda: profile_drift([], []), "same number of steps, at least 1, got 0 and 0"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
