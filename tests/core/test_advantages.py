import math
from dataclasses import replace

import pytest
import torch

from chunk_grpo.core.advantages import (
    SCALES,
    degenerate_groups,
    gain_advantages,
    gdpo_advantages,
    group_advantages,
    weighted_advantages,
)
from tests.core.conftest import double

GROUP, GLOBAL = SCALES["group"], SCALES["global"]
OUTLIER = double([1.0] + [0.0] * 49)  # (1 - 1/50) / sqrt(1/50) = 6.93 with the sample variance 1/50


def test_advantages_by_hand():
    # mean 2.5, sample variance (2.25 + .25 + .25 + 2.25) / 3 = 5/3; each prompt is its own group
    std = math.sqrt(5 / 3)
    advantages = group_advantages(double([1, 2, 3, 4], [100, 300, 200, 200]))
    assert advantages[0].tolist() == pytest.approx([-1.5 / std, -0.5 / std, 0.5 / std, 1.5 / std], abs=1e-7)
    assert advantages[1].tolist() == pytest.approx([-math.sqrt(1.5), math.sqrt(1.5), 0, 0], abs=1e-7)


def test_global_scale_by_hand():
    # group means 1 and 6; all together mean 3.5 and variance (12.25 + 2.25 + 0.25 + 20.25) / 4 = 8.75
    advantages = group_advantages(double([0, 2], [4, 8]), 10.0, replace(GLOBAL, eps=0.0))
    std = math.sqrt(8.75)
    assert advantages.flatten().tolist() == pytest.approx([-1 / std, 1 / std, -2 / std, 2 / std], abs=1e-7)


def test_an_outlier_is_clipped():
    assert group_advantages(OUTLIER, clip=10.0)[0, 0].item() == pytest.approx(49 / math.sqrt(50), abs=1e-5)
    assert group_advantages(OUTLIER)[0, 0].item() == 5.0
    assert group_advantages(-OUTLIER)[0, 0].item() == -5.0
    assert group_advantages(double([0, 2], [4, 8]), clip=0.5, scale=GLOBAL)[1].tolist() == [-0.5, 0.5]


@pytest.mark.parametrize(("scale", "std"), [(GROUP, math.sqrt(8)), (GLOBAL, math.sqrt(8.75))])
def test_eps_is_added_to_the_standard_deviation(scale, std):
    value = group_advantages(double([0, 2], [4, 8]), scale=replace(scale, eps=0.5))[1, 1].item()
    assert value == pytest.approx(2 / (std + 0.5), abs=1e-15)


def test_eps_equals_released_code():
    assert (GROUP.eps, GLOBAL.eps) == (1e-8, 1e-4)


@pytest.mark.parametrize("scale", [GROUP, GLOBAL])
def test_equal_rewards_give_zero_and_are_reported(scale):
    r = double([0.1] * 7, [0, 0, 0, 0, 0, 0, 1]).float()
    assert degenerate_groups(r).tolist() == [True, False]
    advantages = group_advantages(r, scale=scale)
    assert advantages[0].tolist() == [0.0] * 7
    assert advantages[1, 6] > 1
    assert group_advantages(torch.zeros(2, 3), scale=replace(scale, eps=0.0)).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("scale", [GROUP, GLOBAL])
def test_rounding_noise_is_not_an_advantage(scale):
    r = double([0.3, 0.1 + 0.2, 0.3, 0.3], [0.1 + 0.2] * 4)
    assert r[0, 0] != r[0, 1]
    assert group_advantages(r, scale=scale).tolist() == [[0.0] * 4] * 2


def test_gdpo_by_hand():
    # Group 0: -1, 0, 1 and 1, 0, -1; group 1: degenerate and -1, 0, 1. Sums with weights 2 and 1: -1, 0, 1, -1, 0, 1 of
    # mean 0 and variance 4 / 5.
    values = torch.tensor([[[1.0, 2, 3], [5, 5, 5]], [[3.0, 2, 1], [0, 4, 8]]], dtype=torch.float64)
    made = gdpo_advantages(values, [2.0, 1.0])
    one = 1 / math.sqrt(4 / 5)
    assert made.tolist() == [pytest.approx([-one, 0, one], abs=1e-7)] * 2
    assert gdpo_advantages(values, [4.0, 2.0]).tolist() == [pytest.approx([-one, 0, one], abs=1e-7)] * 2
    assert gdpo_advantages(values, [2.0, 1.0], clip=0.5).abs().max().item() == 0.5
    assert gdpo_advantages(torch.ones(2, 2, 3), [1.0, 1.0]).tolist() == [[0.0] * 3] * 2
    with pytest.raises(ValueError, match="clip must be positive, got 0"):
        gdpo_advantages(values, [2.0, 1.0], clip=0)


def test_weighted_advantages_by_hand():
    # standardised within their groups: (-1, 0, 1) and (1, -1, 0), then (-1, 1, 0) and (0, 1, -1)
    values = torch.stack([double([1, 2, 3], [2, 6, 4]), double([30, 10, 20], [5, 6, 4])])
    combined = weighted_advantages(values, [0.5, 2.0])
    assert combined[0].tolist() == pytest.approx([-0.5 + 2, 0 - 2, 0.5 + 0], abs=1e-7)
    assert combined[1].tolist() == pytest.approx([-0.5 + 0, 0.5 + 2, 0 - 2], abs=1e-7)
    # a reward that is degenerate in a group leaves it to the others
    values = torch.stack([double([0.3] * 3), double([1, 2, 3])])
    assert weighted_advantages(values, [1.0, 0.25])[0].tolist() == pytest.approx([-0.25, 0, 0.25], abs=1e-7)


@pytest.mark.parametrize("scale", [GROUP, GLOBAL])
def test_one_reward_of_weight_one_is_its_advantage(scale):
    r = double([1, 2, 4], [5, 3, 1])
    expected = group_advantages(r, clip=0.9, scale=scale)
    assert torch.equal(weighted_advantages(r.unsqueeze(0), [1.0], clip=0.9, scale=scale), expected)


def test_weights_are_not_normalised_and_each_reward_is_clipped_before_the_sum():
    assert weighted_advantages(torch.stack([OUTLIER, OUTLIER]), [1.0, 0.5])[0, 0].item() == 7.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: group_advantages(torch.ones(3, 1)), r"group size of at least 2, got \(3, 1\)"),
        (lambda: group_advantages(torch.ones(3)), r"shape \[P, G\].*got \(3,\)"),
        (lambda: group_advantages(double([1, math.nan])), "rewards must be finite, got .*nan"),
        (lambda: group_advantages(torch.ones(1, 2), clip=0.0), "clip must be positive, got 0"),
        (lambda: weighted_advantages(torch.ones(2, 1, 3), [1.0]), r"one weight .*\(2, 1, 3\) and 1 weights"),
        (lambda: weighted_advantages(torch.ones(1, 3), [1.0]), r"shape \[R, P, G\].*got shape \(1, 3\)"),
        (lambda: weighted_advantages(torch.ones(0, 1, 3), []), "R >= 1 rewards"),
        (lambda: weighted_advantages(torch.ones(1, 1, 3), [math.inf]), r"must be finite, got \[inf\]"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


BOUNDARIES = double(
    # first noise, after chunk 0, image: of two groups of two
    [[0, 1, 4], [2, 2, 2]],
    [[1, 1, 6], [1, 5, 2]],
)


def test_gains_of_chunks_by_hand():
    """Gains 1 and 3, 0 and 0 of the first group; 0 and 5, 4 and -3 of the second: two images are 1 / sqrt(2) apart."""
    one = 1 / math.sqrt(2)
    found = gain_advantages(BOUNDARIES, scale=replace(GROUP, eps=0.0))
    wanted = [[[one, one], [-one, -one]], [[-one, one], [one, -one]]]
    torch.testing.assert_close(found, double(*wanted), rtol=0, atol=1e-12)


def test_gains_over_the_deviation_of_all_groups_by_hand():
    """Chunk 0: 1, 0, 0, 4 of variance 43 / 16. Chunk 1: 3, 0, 5, -3 of variance 147 / 16."""
    found = gain_advantages(BOUNDARIES, scale=replace(GLOBAL, eps=0.0))
    first, second = math.sqrt(43) / 4, math.sqrt(147) / 4
    wanted = [[[0.5 / first, 1.5 / second], [-0.5 / first, -1.5 / second]]]
    wanted += [[[-2 / first, 4 / second], [2 / first, -4 / second]]]
    torch.testing.assert_close(found, double(*wanted), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [GROUP, GLOBAL])
def test_gains_sum_to_the_image_less_the_first_noise(scale):
    """In the rewards' own unit; one chunk from equal rewards has the image's advantage."""
    values = torch.randn(3, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    stds = torch.stack([scale.std(gain).expand(3, 1) for gain in values.diff(dim=2).unbind(2)], dim=2) + scale.eps
    total = values[:, :, -1] - values[:, :, 0]
    summed = (gain_advantages(values, 99.0, scale) * stds).sum(dim=2)
    torch.testing.assert_close(summed, total - total.mean(dim=1, keepdim=True), rtol=0, atol=1e-12)
    rewards = values[:, :, -1]
    one_chunk = torch.stack([torch.zeros_like(rewards), rewards], dim=2)
    assert torch.equal(gain_advantages(one_chunk, 5.0, scale).squeeze(2), group_advantages(rewards, 5.0, scale))


@pytest.mark.parametrize("scale", [GROUP, replace(GLOBAL, eps=1e-12)])
def test_gains_are_clipped_and_0_where_they_differ_by_rounding_alone(scale):
    assert gain_advantages(BOUNDARIES, 0.5, scale).abs().max() == 0.5
    outliers = torch.stack((torch.zeros_like(OUTLIER), OUTLIER), dim=2)
    assert gain_advantages(outliers, scale=scale).max() == 5
    equal = double([[3e7, 3e7 + 1, 3e7], [3e7, 3e7 + 1.5, 3e7 + 9]], [[0, 1, 4], [0, 3, 5]])
    found = gain_advantages(equal, scale=scale)
    assert found[0, :, 0].tolist() == [0.0, 0.0]  # 1 and 1.5 of 3e7
    assert bool((found[0, :, 1] != 0).all()) and bool((found[1] != 0).all())


@pytest.mark.parametrize("values", [torch.zeros(2, 3), torch.zeros(2, 3, 1), BOUNDARIES / 0])
def test_gains_of_other_values_are_refused(values):
    with pytest.raises(ValueError, match=r"values must be finite with shape \[P, G, K \+ 1\]"):
        gain_advantages(values)
