import pytest
import torch

from chunk_grpo.core.dynamics import relative_l1


def test_relative_l1_by_hand():
    # |1-3| + |1+1| = 4 over 3 + 1 = 4; then |0-1| + |1-1| = 1 over 2
    states = torch.tensor([[3.0, -1.0], [1.0, 1.0], [0.0, 1.0]]).reshape(1, 3, 1, 2)
    assert relative_l1(states).tolist() == [[1.0, 0.5]]


def test_norms_are_summed_over_tokens_and_channels_before_dividing():
    # token 0: 1 -> 2, token 1: 3 -> 3: 1 / 4, not the mean of 1 and 0
    states = torch.tensor([[1.0, 3.0], [2.0, 3.0]]).reshape(1, 2, 2, 1)
    assert relative_l1(states).item() == 0.25


def test_shrinking_by_a_factor_is_one_minus_the_factor():
    x = torch.randn(2, 1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    states = torch.cat([x, 0.8 * x, 0.8 * 0.3 * x], dim=1)
    torch.testing.assert_close(
        relative_l1(states), torch.tensor([[0.2, 0.7]] * 2, dtype=torch.float64), rtol=0, atol=1e-15
    )


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (torch.ones(2, 1, 3, 4), r"S >= 1, got \(2, 1, 3, 4\)"),
        (torch.ones(3, 4), r"\[B, S \+ 1, L, D\]"),
        (torch.zeros(1, 2, 3, 4), "positive L1 norm"),
    ],
)
def test_bad_states_are_refused(states, message):
    with pytest.raises(ValueError, match=message):
        relative_l1(states)
