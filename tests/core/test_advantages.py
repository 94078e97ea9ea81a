import math
from dataclasses import replace

import pytest
import torch

from chunk_grpo.core.advantages import SCALES, degenerate_groups, group_advantages, weighted_advantages

GROUP, GLOBAL = SCALES["group"], SCALES["global"]


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
    value = group_advantages(rewards([0, 1]), scale=replace(GROUP, eps=0.5))[0, 1].item()
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


def test_a_bad_clip_is_refused():
    with pytest.raises(ValueError, match="clip must be positive, got 0"):
        group_advantages(torch.ones(1, 2), clip=0.0)


def test_what_is_added_is_that_of_the_released_codes():
    assert (GROUP.eps, GLOBAL.eps) == (1e-8, 1e-4)


def test_global_scale_by_hand():
    # group means 1 and 6; all together mean 3.5 and variance (12.25 + 2.25 + 0.25 + 20.25) / 4 = 8.75
    advantages = group_advantages(rewards([0, 2], [4, 8]), 10.0, replace(GLOBAL, eps=0.0))
    std = math.sqrt(8.75)
    assert advantages[0].tolist() == pytest.approx([-1 / std, 1 / std], abs=1e-7)
    assert advantages[1].tolist() == pytest.approx([-2 / std, 2 / std], abs=1e-7)


def test_global_scale_adds_eps_and_clips():
    r = rewards([0, 2], [4, 8])
    with_eps = group_advantages(r, scale=replace(GLOBAL, eps=0.5))
    assert with_eps[1, 1].item() == pytest.approx(2 / (math.sqrt(8.75) + 0.5), abs=1e-15)
    assert group_advantages(r, clip=0.5, scale=GLOBAL)[1].tolist() == [-0.5, 0.5]


def test_global_scale_keeps_degenerate_groups_at_zero():
    advantages = group_advantages(rewards([0.1] * 7, [0, 0, 0, 0, 0, 0, 1]).float(), scale=GLOBAL)
    assert advantages[0].tolist() == [0.0] * 7
    assert advantages[1, 6] > 1
    assert group_advantages(rewards([0.3] * 3, [0.1 + 0.2] * 3), scale=GLOBAL).tolist() == [[0.0] * 3] * 2


def test_global_scale_of_rewards_all_equal_is_zero():
    assert group_advantages(torch.zeros(2, 3), scale=replace(GLOBAL, eps=0.0)).tolist() == [[0.0] * 3] * 2


def test_weighted_advantages_by_hand():
    # standardised within their groups: (-1, 0, 1) and (1, -1, 0), then (-1, 1, 0) and (0, 1, -1)
    values = torch.stack([rewards([1, 2, 3], [2, 6, 4]), rewards([30, 10, 20], [5, 6, 4])])
    combined = weighted_advantages(values, [0.5, 2.0])
    assert combined[0].tolist() == pytest.approx([-0.5 + 2, 0 - 2, 0.5 + 0], abs=1e-7)
    assert combined[1].tolist() == pytest.approx([-0.5 + 0, 0.5 + 2, 0 - 2], abs=1e-7)


def test_weighted_advantages_ignore_the_scale_of_each_reward():
    first, second = rewards([1, 2, 4], [5, 3, 1]), rewards([0.1, 0.3, 0.2], [0.6, 0.2, 0.1])
    plain = weighted_advantages(torch.stack([first, second]), [0.7, 0.3])
    scaled = weighted_advantages(torch.stack([100 * first - 7, second]), [0.7, 0.3])
    torch.testing.assert_close(scaled, plain, rtol=0, atol=1e-6)


def test_one_reward_of_weight_one_is_its_advantage():
    r = rewards([1, 2, 4], [5, 3, 1])
    for scale in (GROUP, GLOBAL):
        expected = group_advantages(r, clip=0.9, scale=scale)
        assert torch.equal(weighted_advantages(r.unsqueeze(0), [1.0], clip=0.9, scale=scale), expected)


def test_weights_are_not_normalised_and_each_reward_is_clipped_before_the_sum():
    r = rewards([1.0] + [0.0] * 49)  # standardised 6.93, clipped 5
    assert weighted_advantages(torch.stack([r, r]), [1.0, 0.5])[0, 0].item() == 7.5


def test_a_reward_degenerate_in_a_group_leaves_it_to_the_others():
    values = torch.stack([rewards([0.3] * 3), rewards([1, 2, 3])])
    assert weighted_advantages(values, [1.0, 0.25])[0].tolist() == pytest.approx([-0.25, 0, 0.25], abs=1e-7)


@pytest.mark.parametrize(
    ("shape", "weights", "message"),
    [
        ((2, 1, 3), [1.0], r"one weight for each.*\(2, 1, 3\) and 1 weights"),
        ((1, 3), [1.0], r"shape \[R, P, G\].*got shape \(1, 3\)"),
        ((0, 1, 3), [], "R >= 1 rewards"),
        ((1, 1, 3), [math.inf], r"weights must be finite, got \[inf\]"),
    ],
)
def test_bad_weights_of_rewards_are_refused(shape, weights, message):
    with pytest.raises(ValueError, match=message):
        weighted_advantages(torch.ones(shape), weights)
