"""False alarms of moved scores, and the result for each score."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from chunk_grpo.artifacts import table_from_rows
from chunk_grpo.reporting.history import ALPHA, HistoryRow, Measured, compare
from tests.reporting.history_cases import evaluation

TEMPLATE = HistoryRow(
    "night-0", evaluation(0).evaluated_at, "tiny", "m", "c", 0, "chunk", "tuned", "eval", "", "v1",
    0.0, 0.0, 0.0, 0.0, 1.0, 1, 1, 1, 1,
)  # fmt: skip


def night(means: np.ndarray, repeats: int = 1, number: int = 0, scorer_hash: str = "v1", first: int = 0) -> Measured:
    """An evaluation with given means, [prompts, scorers], of prompts from `first` on, each caption `repeats` times."""
    rows = tuple(
        replace(TEMPLATE, evaluation=f"night-{number}", scorer=f"{s}", scorer_hash=scorer_hash)
        for s in range(means.shape[1])
    )
    of_prompts = [
        {
            "evaluation": row.evaluation, **row.score._asdict(), "prompt_id": f"{prompt}",
            "prompt": f"caption {prompt // repeats}", "mean": float(mean), "num_images": 1,
        }
        for row, column in zip(rows, means.T, strict=True)
        for prompt, mean in enumerate(column, start=first)
    ]  # fmt: skip
    return Measured(rows, table_from_rows(of_prompts, "evaluation_prompts"))


def compared(before: np.ndarray, after: np.ndarray, repeats: int = 1) -> list[HistoryRow]:
    old = night(before, repeats)
    return list(compare(night(after, repeats, 1), old.rows, lambda _: old.prompts))


def noise(generator: np.random.Generator, kind: str) -> np.ndarray:
    """[40, 5] means of prompts in one evaluation: scores of the same images, and therefore correlated."""
    level = np.linspace(-1.5, 1.5, 40)[:, None]
    images = level + 0.6 * generator.normal(size=(40, 1)) + 0.8 * generator.normal(size=(40, 5))
    if kind == "right or wrong":
        return (images > level).astype(float)
    return np.exp(images) if kind == "skewed" else images


@pytest.mark.parametrize(
    "kind", ["skewed", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("normal", "right or wrong"))]
)
def test_false_alarms_where_nothing_changed(kind: str) -> None:
    """1 % of 200 evaluations is 2; more than 6 have a chance of 1 in 200. Intervals of 95 % would give about 40."""
    generator = np.random.default_rng(11)
    alarms = sum(
        any(row.change == "moved" for row in compared(noise(generator, kind), noise(generator, kind)))
        for _ in range(200)
    )
    assert alarms <= 6


def test_a_true_change_is_found() -> None:
    """40 prompts, a shift of 1.2 standard deviations of the differences, in one of five scores."""
    generator, shift = np.random.default_rng(3), np.array([0, 0, 0, 0, 1.2])
    found = [compared(np.zeros((40, 5)), generator.normal(size=(40, 5)) + shift)[4].change for _ in range(50)]
    assert found.count("moved") >= 48


def test_p_value_and_band_are_those_of_students_t_times_the_number_of_scores() -> None:
    """Of the differences alone: the prompts' own levels drop out."""
    differences, levels = np.random.default_rng(5).normal(0.5, 1, size=(40, 3)), 100.0 * np.arange(40)[:, None]
    for row, column in zip(compared(0 * differences + levels, differences + levels), differences.T, strict=True):
        test = stats.ttest_1samp(column, 0)
        assert row.p_value == pytest.approx(min(1, 3 * test.pvalue))
        interval = test.confidence_interval(1 - ALPHA / 3)
        assert row.band == pytest.approx((interval.high - interval.low) / 2)


def test_repeated_captions_do_not_narrow_the_band() -> None:
    differences = np.random.default_rng(2).normal(size=(16, 1))
    (once,) = compared(0 * differences, differences)
    (thrice,) = compared(np.zeros((48, 1)), np.repeat(differences, 3, axis=0), repeats=3)
    assert (thrice.difference, thrice.band) == pytest.approx((once.difference, once.band))
    (few,) = compared(np.zeros((21, 1)), np.ones((21, 1)), repeats=3)
    assert (few.change, few.difference) == ("unknown", 1.0)


def test_identical_change_of_every_prompt_counts_as_moved() -> None:
    (row,) = compared(np.zeros((10, 1)), np.full((10, 1), 0.5))
    assert (row.change, row.band, row.p_value) == ("moved", 0.0, 0.0)


def scores(draw: int, shift: float = 0.0) -> np.ndarray:
    """[40, 1] means of prompts with levels of their own, as another draw of the noise has them."""
    level = np.linspace(0, 1, 40)[:, None]
    return level + shift + np.random.default_rng(draw).normal(0, 0.1, size=(40, 1))


def compared_in_turn(*nights: Measured) -> list[HistoryRow]:
    """Evaluations one after the other, as a schedule has them."""
    rows: list[HistoryRow] = []
    tables = {one.rows[0].evaluation: one.prompts for one in nights}
    for one in nights:
        rows += compare(one, rows, tables.__getitem__)
    return rows


Given = Mapping[str, Any]


@pytest.mark.parametrize(
    ("nights", "found"),
    [
        ([{"means": scores(0)}] * 3, [("first", ""), ("same", "night-0"), ("same", "night-0")]),
        (  # a score that moves is the reference from then on
            [{"means": scores(n, -0.2 * (n in (2, 3)))} for n in range(5)],
            [("first", ""), ("none", "night-0"), ("moved", "night-0"), ("none", "night-2"), ("moved", "night-2")],
        ),
        (  # a scorer that changed is not compared
            [{"means": scores(0)}, *({"means": scores(n, -0.4), "scorer_hash": "v2"} for n in (1, 2))],
            [("first", ""), ("scorer", "night-0"), ("none", "night-1")],
        ),
        (  # nor are other prompts
            [{"means": scores(0)}, *({"means": scores(n), "first": 40} for n in (1, 2))],
            [("first", ""), ("prompts", "night-0"), ("none", "night-1")],
        ),
        (  # of others the prompts that both have
            [{"means": scores(0)}, {"means": scores(0)[8:], "first": 8}],
            [("first", ""), ("same", "night-0")],
        ),
        (  # a new score has nothing to be compared with
            [{"means": scores(0)}, *({"means": np.hstack([scores(n), scores(n + 9)])} for n in (1, 2))],
            [("first", ""), ("none", "night-0"), ("first", ""), ("none", "night-0"), ("none", "night-1")],
        ),
    ],
    ids=["equal", "moved", "scorer", "prompts", "common prompts", "new"],
)
def test_change_and_reference_of_each_evaluation(nights: list[Given], found: list[tuple[str, str]]) -> None:
    rows = compared_in_turn(*(night(**given, number=number) for number, given in enumerate(nights)))
    assert [(row.change, row.reference) for row in rows] == found
    for row in rows:
        tested = row.change in ("none", "moved")
        assert math.isnan(row.p_value) is math.isnan(row.band) is not tested
        assert math.isnan(row.difference) is (row.change in ("first", "scorer", "prompts"))
        if tested:
            assert (abs(row.difference) > row.band) == (row.p_value <= ALPHA) == (row.change == "moved")


def test_a_slow_drift_is_found() -> None:
    """Each step is within chance; the reference stays until the sum of the steps is not."""
    found = compared_in_turn(*(night(scores(step, -0.03 * step), number=step) for step in range(7)))
    assert [row.change for row in found][:2] == ["first", "none"] and "moved" in {row.change for row in found}


def test_an_evaluation_that_is_recorded_again_is_not_its_own_reference() -> None:
    nights = [night(scores(number), number=number) for number in (0, 1)]
    later = compared_in_turn(*nights)[1:]
    tables = {one.rows[0].evaluation: one.prompts for one in nights}
    (row,) = compare(night(scores(2)), later, tables.__getitem__)
    assert (row.reference, row.change) == ("night-1", "none")
