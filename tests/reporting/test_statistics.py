import math

import numpy as np
import pytest
from scipy import stats

from chunk_grpo.reporting.statistics import Interval, crossed_interval, holm


def test_one_training_seed_is_the_paired_t_interval() -> None:
    values = np.random.default_rng(1).normal(0.1, 0.3, size=(1, 60))
    expected = stats.ttest_1samp(values[0], 0).confidence_interval(0.95)
    found = crossed_interval(values)
    assert found.mean == pytest.approx(values.mean(), abs=1e-12)
    assert found.degrees_of_freedom == pytest.approx(59)
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_prompts_are_shared_by_training_seeds() -> None:
    # Every seed shows the same prompt effects: three seeds say no more about the prompts than one.
    row = np.random.default_rng(2).normal(size=40)
    one, three = crossed_interval(row[None]), crossed_interval(np.tile(row, (3, 1)))
    assert three.standard_error == pytest.approx(one.standard_error)
    assert three.degrees_of_freedom == pytest.approx(39)


def test_seeds_alone_leave_two_degrees_of_freedom() -> None:
    values = np.tile(np.array([[0.0], [1.0], [2.0]]), (1, 30))  # variance of the mean: 1 / 3
    found = crossed_interval(values)
    assert found.degrees_of_freedom == pytest.approx(2.0)
    assert found.standard_error == pytest.approx(math.sqrt(1 / 3))


def test_the_interaction_counts_once() -> None:
    # Two seeds, two captions. Seed means 1, 3: A = 2 / 2 = 1. Caption means 1, 3: B = 2 / 4 x (1 + 1) = 1. Residuals of
    # 0, 2, 2, 4 are 0; with +-c added crosswise they are +-c: E = 2 / 4 x 4 c^2 / 2 = c^2.
    c = 0.5
    values = np.array([[0.0 + c, 2.0 - c], [2.0 - c, 4.0 + c]])
    found = crossed_interval(values)
    assert found.standard_error == pytest.approx(math.sqrt(1 + 1 - c**2))
    assert found.degrees_of_freedom == pytest.approx((2 - c**2) ** 2 / (1 + 1 + c**4))


def test_standard_error_is_at_least_that_of_seeds_or_captions() -> None:
    # Without residuals' share the interaction alone would be subtracted: A = B = 0.01, E = 1.
    values = np.array([[1.2, -1.0], [-1.0, 0.8]]) + np.array([[0.0, 0.0], [0.0, 0.4]])
    of_seed, of_caption = values.mean(axis=1), values.mean(axis=0)
    expected = max(of_seed.var(ddof=1) / 2, of_caption.var(ddof=1) / 2)
    assert crossed_interval(values).standard_error == pytest.approx(math.sqrt(expected))


def test_repeated_captions_do_not_narrow_the_interval() -> None:
    captions = np.random.default_rng(2).normal(size=(3, 20))
    texts = [f"caption {i}" for i in range(20)]
    once = crossed_interval(captions, captions=texts)
    thrice = crossed_interval(np.tile(captions, (1, 3)), captions=texts * 3)
    assert thrice.low == pytest.approx(once.low)
    assert thrice.high == pytest.approx(once.high)
    assert thrice.degrees_of_freedom == pytest.approx(once.degrees_of_freedom)
    assert (thrice.num_prompts, thrice.num_captions) == (60, 20)


def test_distinct_captions_are_prompts() -> None:
    values = np.random.default_rng(4).normal(size=(3, 12))
    assert crossed_interval(values, captions=[f"{i:02}" for i in range(12)]) == crossed_interval(values)


def test_captions_of_unequal_number_by_hand() -> None:
    # Captions a (4 prompts of value 0) and b (2 of value 3); mean 1. B = 2 x ((4/6 x 1)^2 + (2/6 x 2)^2) = 16 / 9.
    found = crossed_interval(np.array([[0.0, 0.0, 0.0, 0.0, 3.0, 3.0]]), captions=list("aaaabb"))
    assert found.mean == pytest.approx(1.0)
    assert found.standard_error == pytest.approx(4 / 3)
    assert found.degrees_of_freedom == pytest.approx(1.0)


@pytest.mark.parametrize("captions", [None, list("aabcc")], ids=["one prompt", "one caption"])
def test_a_stratum_of_one_gives_no_interval(captions: list[str] | None) -> None:
    strata = list("rrsss") if captions else list("ssssr")
    found = crossed_interval(np.array([[1.0, 2.0, 3.0, 4.0, 6.0]]), strata, captions)
    assert found.mean == pytest.approx((1.5 + 13 / 3) / 2 if captions else (2.5 + 6) / 2)
    assert math.isnan(found.low) and found.verdict == "unknown"


def test_strata_have_equal_weight() -> None:
    values = np.array([[1.0, 1.0, 1.0, 1.0, 3.0, 5.0]])
    found = crossed_interval(values, ["a"] * 4 + ["b"] * 2)
    assert found.mean == pytest.approx((1 + 4) / 2)
    assert found.standard_error == pytest.approx(0.5)  # half of stratum b's s / sqrt(2) = 1
    assert found.degrees_of_freedom == pytest.approx(1.0)


def test_seeds_are_shared_by_strata() -> None:
    # Both strata of a seed move together: the variance of the mean is that of one stratum.
    values = np.array([[0.0] * 4, [1.0] * 4])
    found = crossed_interval(values, list("aabb"))
    assert found.standard_error == pytest.approx(math.sqrt(0.5 / 2))


def test_constant_scores_give_zero_width_interval() -> None:
    found = crossed_interval(np.full((3, 7), 0.1))
    assert found.low == found.mean == found.high == pytest.approx(0.1)
    assert found.verdict == "above"
    assert crossed_interval(np.zeros((3, 7))).verdict == "none"


def test_p_value_equals_paired_t_test() -> None:
    values = np.random.default_rng(1).normal(0.1, 0.3, size=(1, 60))
    assert crossed_interval(values).p_value == pytest.approx(stats.ttest_1samp(values[0], 0).pvalue)
    assert crossed_interval(np.zeros((3, 7))).p_value == 1
    assert crossed_interval(np.full((3, 7), 0.1)).p_value == 0
    assert math.isnan(crossed_interval(np.array([[1.0]])).p_value)


@pytest.mark.parametrize(
    ("seeds", "freedom", "t"), [(8, 20.0, 2.365), (8, 7.0, 2.365), (8, 4.0, 2.776), (6, math.inf, 2.571)]
)
def test_pairs_have_one_degree_of_freedom_fewer_than_seeds_at_most(seeds: int, freedom: float, t: float) -> None:
    """Quantiles of a table of t: 2.365 for 7 degrees of freedom, 2.776 for 4, 2.571 for 5."""
    assert Interval(t, 0.0, 0.0, 1.0, freedom, seeds, 144, 73).pair_p_value == pytest.approx(0.05, abs=1e-4)


def test_pairs_of_few_seeds_have_no_p_value() -> None:
    found = Interval(2.776, 0.0, 0.0, 1.0, 4.0, 5, 144, 73)
    assert math.isnan(found.pair_p_value) and found.p_value == pytest.approx(0.05, abs=1e-4)


def test_holm_by_hand() -> None:
    # In order: 4 x 0.01, 3 x 0.012 (raised to 0.04), 2 x 0.04, 1 x 0.5.
    assert holm([0.5, 0.012, 0.04, 0.01]) == pytest.approx([0.5, 0.04, 0.08, 0.04])
    assert holm([0.9, 0.6]) == pytest.approx([1.0, 1.0])
    found = holm([math.nan, 0.01])
    assert math.isnan(found[0]) and found[1] == pytest.approx(0.02)
    assert holm([]) == []


@pytest.mark.parametrize(
    ("values", "strata", "captions", "message"),
    [
        (np.zeros(3), None, None, "must be"),
        (np.zeros((0, 3)), None, None, "not empty"),
        (np.array([[math.nan, 0.0]]), None, None, "finite"),
        (np.zeros((1, 3)), ["a"], None, "strata must name 3 prompts, got 1"),
        (np.zeros((1, 3)), None, ["a"], "captions must name 3 prompts, got 1"),
    ],
)
def test_refuses(values: np.ndarray, strata: list[str] | None, captions: list[str] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        crossed_interval(values, strata, captions)


def test_the_smallest_difference_by_a_table_of_t() -> None:
    """With 4 degrees of freedom the quantiles of 0.975 and 0.8 are 2.776 and 0.941."""
    interval = Interval(1.0, 0.9, 1.1, 0.01, 4.0, 2, 8, 8)
    assert interval.detectable == pytest.approx(0.01 * (2.776 + 0.941), abs=1e-5)
