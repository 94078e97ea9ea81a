import math

import pytest
import torch

from chunk_grpo.core.advantages import degenerate_groups, group_advantages


def rewards(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_advantages_by_hand():
    # mean 2.5, sample variance (2.25 + .25 + .25 + 2.25) / 3 = 5/3
    std = math.sqrt(5 / 3)
    expected = [-1.5 / std, -0.5 / std, 0.5 / std, 1.5 / std]
    assert group_advantages(rewards([1, 2, 3, 4]))[0].tolist() == pytest.approx(expected, abs=1e-7)


def test_each_prompt_is_its_own_group():
    together = group_advantages(rewards([1, 2, 3], [100, 300, 200]))
    assert torch.equal(together[0], group_advantages(rewards([1, 2, 3]))[0])
    assert together[1].tolist() == pytest.approx([-1, 1, 0], abs=1e-7)


def test_advantages_ignore_shift_and_scale_of_the_reward():
    r = rewards([0.3, 0.9, 0.1, 0.4])
    torch.testing.assert_close(group_advantages(7 * r - 2), group_advantages(r), rtol=0, atol=1e-6)


def test_an_outlier_is_clipped():
    # one 1 among 49 zeros: (1 - 1/50) / sqrt(1/50) = 6.93 with the sample variance 1/50
    r = rewards([1.0] + [0.0] * 49)
    assert group_advantages(r, clip=10.0)[0, 0].item() == pytest.approx(49 / math.sqrt(50), abs=1e-5)
    assert group_advantages(r)[0, 0].item() == 5.0
    assert group_advantages(-r)[0, 0].item() == -5.0


def test_eps_is_added_to_the_standard_deviation():
    # std sqrt(2) * .5, plus .5
    value = group_advantages(rewards([0, 1]), eps=0.5)[0, 1].item()
    assert value == pytest.approx(0.5 / (math.sqrt(0.5) + 0.5), abs=1e-15)


def test_equal_rewards_give_zero_and_are_reported():
    r = rewards([0.1] * 7, [0, 0, 0, 0, 0, 0, 1]).float()
    assert degenerate_groups(r).tolist() == [True, False]
    assert group_advantages(r)[0].tolist() == [0.0] * 7


def test_rounding_noise_is_not_an_advantage():
    r = torch.tensor([[0.3, 0.1 + 0.2, 0.3, 0.3]], dtype=torch.float64)
    assert r[0, 0] != r[0, 1]
    assert group_advantages(r).tolist() == [[0.0] * 4]


@pytest.mark.parametrize(
    ("r", "message"),
    [
        (torch.ones(3, 1), r"group size of at least 2, got \(3, 1\)"),
        (torch.ones(3), r"shape \[P, G\].*got \(3,\)"),
        (torch.tensor([[1.0, math.nan]]), "rewards must be finite, got .*nan"),
    ],
)
def test_bad_rewards_are_refused(r, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(r)


@pytest.mark.parametrize(
    ("options", "message"), [({"clip": 0.0}, "clip must be positive, got 0"), ({"eps": -1.0}, "eps must be")]
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(torch.ones(1, 2), **options)
