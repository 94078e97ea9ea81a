import math

import numpy as np
import pytest
from scipy import stats

from chunk_grpo.reporting.statistics import crossed_interval


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def test_one_training_seed_is_the_paired_t_interval() -> None:
    values = np.random.default_rng(1).normal(0.1, 0.3, size=(1, 60))
    expected = stats.ttest_1samp(values[0], 0).confidence_interval(0.95)
    found = crossed_interval(values, 20_000, generator())
    assert found.mean == pytest.approx(values.mean(), abs=1e-12)
    assert found.degrees_of_freedom == pytest.approx(59)
    assert found.low == pytest.approx(
        expected.low, abs=0.002
    )  # the bootstrap's own error, 1 / sqrt(2 x draws)
    assert found.high == pytest.approx(expected.high, abs=0.002)


def test_two_prompts_by_hand() -> None:
    # n - 1 = 1 of the differences {0, 2} is drawn: 0 or 2, variance 1 = s^2 / n. One degree of freedom.
    found = crossed_interval(np.array([[0.0, 2.0]]), 40_000, generator())
    assert found.standard_error == pytest.approx(1.0, abs=0.01)
    assert found.degrees_of_freedom == pytest.approx(1.0)
    assert found.high - found.mean == pytest.approx(12.706, rel=0.01)  # t(0.975, 1)


def test_prompts_are_shared_by_training_seeds() -> None:
    # Every seed shows the same prompt effects: three seeds say no more about the prompts than one.
    row = np.random.default_rng(2).normal(size=40)
    one = crossed_interval(row[None], 8_000, generator())
    three = crossed_interval(np.tile(row, (3, 1)), 8_000, generator())
    assert three.standard_error == pytest.approx(one.standard_error, rel=0.05)
    assert three.degrees_of_freedom == pytest.approx(39)


def test_seeds_alone_leave_two_degrees_of_freedom() -> None:
    values = np.tile(np.array([[0.0], [1.0], [2.0]]), (1, 30))  # variance of the mean: 1 / 3
    found = crossed_interval(values, 40_000, generator())
    assert found.degrees_of_freedom == pytest.approx(2.0)
    assert found.standard_error == pytest.approx(math.sqrt(1 / 3), rel=0.02)


def test_satterthwaite_by_hand() -> None:
    # Seed means 0.5, 2.5: variance of the mean 2 / 2 = 1; prompt means 1, 2: 0.5 / 2 = 0.25; a degree each.
    values = np.array([[0.0, 1.0], [2.0, 3.0]])
    found = crossed_interval(values, 10, generator())
    assert found.degrees_of_freedom == pytest.approx(1.25**2 / (1.0 + 0.25**2))


def test_a_caption_repeated_tells_no_more_than_the_caption() -> None:
    captions = np.random.default_rng(2).normal(size=(1, 20))
    texts = [f"caption {i}" for i in range(20)]
    once = crossed_interval(captions, 8_000, generator(), captions=texts)
    thrice = crossed_interval(np.tile(captions, (1, 3)), 8_000, generator(), captions=texts * 3)
    assert thrice.low == pytest.approx(once.low)
    assert thrice.high == pytest.approx(once.high)
    assert thrice.degrees_of_freedom == pytest.approx(19)
    assert (thrice.num_prompts, thrice.num_captions) == (60, 20)


def test_distinct_captions_are_prompts() -> None:
    values = np.random.default_rng(4).normal(size=(3, 12))
    with_texts = crossed_interval(values, 100, generator(), captions=[f"{i:02}" for i in range(12)])
    assert with_texts == crossed_interval(values, 100, generator())


def test_captions_of_unequal_number_by_hand() -> None:
    # Captions a (4 prompts of value 0) and b (2 of value 3): one of the two is drawn, hence 0 or 3.
    found = crossed_interval(
        np.array([[0.0, 0.0, 0.0, 0.0, 3.0, 3.0]]), 40_000, generator(), captions=list("aaaabb")
    )
    assert found.mean == pytest.approx(1.0)
    assert found.standard_error == pytest.approx(1.5, rel=0.01)
    assert found.degrees_of_freedom == pytest.approx(1.0)


def test_one_caption_in_a_stratum_gives_no_interval() -> None:
    found = crossed_interval(np.array([[1.0, 2.0, 3.0, 4.0]]), 100, generator(), list("ssrr"), list("aabc"))
    assert found.verdict == "unknown"


def test_coverage_with_repeated_captions_is_roughly_nominal() -> None:
    source = np.random.default_rng(7)
    texts, repeats = [f"{i}" for i in range(25)], 4
    together = apart = 0
    for _ in range(400):
        of_caption = np.repeat(source.normal(size=(1, 25)), repeats, axis=1)
        values = of_caption + 0.5 * source.normal(size=(1, 25 * repeats))
        named = np.repeat(texts, repeats).tolist()
        together += (found := crossed_interval(values, 200, source, captions=named)).low <= 0 <= found.high
        apart += (found := crossed_interval(values, 200, source)).low <= 0 <= found.high
    assert 0.92 <= together / 400 <= 0.98
    assert apart / 400 < 0.8  # what drawing prompts one by one would claim


def test_strata_count_alike() -> None:
    values = np.array([[1.0, 1.0, 1.0, 1.0, 3.0, 5.0]])
    found = crossed_interval(values, 20_000, generator(), ["a"] * 4 + ["b"] * 2)
    assert found.mean == pytest.approx((1 + 4) / 2)
    assert found.standard_error == pytest.approx(0.5, rel=0.02)  # half of stratum b's s / sqrt(2) = 1
    assert found.degrees_of_freedom == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("num_seeds", "seed_scatter", "lowest"), [(1, 0.0, 0.92), (3, 0.3, 0.92), (3, 1.0, 0.89)]
)
def test_coverage_is_roughly_nominal(num_seeds: int, seed_scatter: float, lowest: float) -> None:
    source = np.random.default_rng(3)
    hits = 0
    for _ in range(400):
        values = source.normal(size=(1, 40)) + source.normal(size=(num_seeds, 40))
        values += seed_scatter * source.normal(size=(num_seeds, 1))
        found = crossed_interval(values, 200, source)
        hits += found.low <= 0 <= found.high
    assert lowest <= hits / 400 <= 0.995


def test_nothing_varies_nothing_is_wide() -> None:
    found = crossed_interval(np.full((3, 7), 0.1), 100, generator())
    assert found.low == found.mean == found.high == pytest.approx(0.1)
    assert found.verdict == "above"
    assert crossed_interval(np.zeros((3, 7)), 100, generator()).verdict == "none"


def test_equal_seeds_equal_numbers() -> None:
    values = np.random.default_rng(4).normal(size=(3, 20))
    first, again = (crossed_interval(values, 300, np.random.default_rng(5)) for _ in range(2))
    other = crossed_interval(values, 300, np.random.default_rng(6))
    assert first == again
    assert first.low != other.low


def test_one_prompt_in_a_stratum_gives_no_interval() -> None:
    found = crossed_interval(np.array([[1.0, 2.0, 3.0]]), 100, generator(), ["a", "a", "b"])
    assert found.mean == pytest.approx(2.25)
    assert math.isnan(found.low)
    assert found.verdict == "unknown"


@pytest.mark.parametrize(
    ("values", "num_draws", "strata", "captions", "message"),
    [
        (np.zeros(3), 10, None, None, "must be"),
        (np.zeros((0, 3)), 10, None, None, "not empty"),
        (np.array([[math.nan, 0.0]]), 10, None, None, "finite"),
        (np.zeros((1, 3)), 1, None, None, "at least 2"),
        (np.zeros((1, 3)), 10, ["a"], None, "strata must name 3 prompts, got 1"),
        (np.zeros((1, 3)), 10, None, ["a"], "captions must name 3 prompts, got 1"),
    ],
)
def test_refuses(
    values: np.ndarray, num_draws: int, strata: list[str] | None, captions: list[str] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        crossed_interval(values, num_draws, generator(), strata, captions)
