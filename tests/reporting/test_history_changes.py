"""False alarms of moved scores, and the result for each score."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from chunk_grpo.artifacts import table_from_rows
from chunk_grpo.reporting.history import ALPHA, HistoryRow, Measured, Score, compare, measure
from tests.reporting.history_cases import Case, evaluation, write_workspace

TUNED = Score("chunk", "tuned", "eval", "shapes-graded")
TEMPLATE = HistoryRow(
    "night-0", evaluation(0).evaluated_at, "tiny", "m", "c", 0, "chunk", "tuned", "eval", "", "v1",
    0.0, 0.0, 0.0, 0.0, 1.0, 1, 1, 1, 1,
)  # fmt: skip


def night(means: np.ndarray, repeats: int = 1, number: int = 0) -> Measured:
    """An evaluation with given means, [prompts, scorers]; each caption has `repeats` prompts."""
    rows = tuple(
        replace(TEMPLATE, evaluation=f"night-{number}", scorer=f"{s}") for s in range(means.shape[1])
    )
    of_prompts = [
        {
            "evaluation": row.evaluation, **row.score._asdict(), "prompt_id": f"{prompt}",
            "prompt": f"caption {prompt // repeats}", "mean": float(mean), "num_images": 1,
        }
        for row, column in zip(rows, means.T, strict=True)
        for prompt, mean in enumerate(column)
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


@pytest.mark.parametrize("kind", ["normal", "skewed", "right or wrong"])
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
    differences = np.random.default_rng(5).normal(0.5, 1, size=(40, 3))
    for row, column in zip(compared(0 * differences, differences), differences.T, strict=True):
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


def test_the_spread_between_prompts_does_not_matter() -> None:
    generator = np.random.default_rng(4)
    before, after = generator.normal(size=(30, 1)), generator.normal(size=(30, 1))
    levels = 100.0 * np.arange(30)[:, None]
    (near,), (far,) = compared(before, after), compared(before + levels, after + levels)
    assert (far.difference, far.band) == pytest.approx((near.difference, near.band))


def test_identical_change_of_every_prompt_counts_as_moved() -> None:
    (row,) = compared(np.zeros((10, 1)), np.full((10, 1), 0.5))
    assert (row.change, row.band, row.p_value) == ("moved", 0.0, 0.0)


def measured_night(number: int, case: Case, root: Path) -> Measured:
    return measure(write_workspace(root / f"night-{number}", case), evaluation(number))


class Nights:
    """Evaluations one after the other, as a schedule has them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rows: list[HistoryRow] = []
        self.tables: dict[str, pa.Table] = {}
        self.number = 0

    def next(self, case: Case) -> Mapping[Score, HistoryRow]:
        measured = measured_night(self.number, case, self.root)
        rows = compare(measured, self.rows, self.tables.__getitem__)
        self.tables[f"night-{self.number}"] = measured.prompts
        self.rows += rows
        self.number += 1
        return {row.score: row for row in rows}


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


LOWER = {("chunk", "shapes-graded"): -0.2}


def test_equal_scores_are_the_same_and_not_compared_further(nights: Nights) -> None:
    assert {row.change for row in nights.next(Case(1)).values()} == {"first"}
    for _ in range(2):
        for row in nights.next(Case(1)).values():
            assert (row.change, row.reference, row.difference) == ("same", "night-0", 0.0)
            assert math.isnan(row.p_value)


def test_a_score_that_moves_is_the_reference_from_then_on(nights: Nights) -> None:
    nights.next(Case(0))
    assert nights.next(Case(1))[TUNED].change == "none"
    moved = nights.next(Case(2, LOWER))
    assert {score for score, row in moved.items() if row.change == "moved"} == {
        TUNED,
        TUNED._replace(mode="hybrid"),
    }
    for row in moved.values():
        if row.change != "unknown":
            assert (abs(row.difference) > row.band) == (row.p_value <= ALPHA) == (row.change == "moved")
    assert (moved[TUNED].reference, moved[TUNED].difference < 0) == ("night-0", True)
    stays = nights.next(Case(3, LOWER))
    assert (stays[TUNED].change, stays[TUNED].reference) == ("none", "night-2")
    other = TUNED._replace(policy="dance")
    assert (stays[other].change, stays[other].reference) == ("none", "night-0")
    back = nights.next(Case(4))[TUNED]
    assert (back.change, back.reference, back.difference > 0) == ("moved", "night-2", True)


def test_a_slow_drift_is_found(nights: Nights) -> None:
    """Each step is within chance; the reference stays until the sum of the steps is not."""
    found = [
        nights.next(Case(step, {("chunk", "shapes-graded"): -0.03 * step}))[TUNED].change for step in range(7)
    ]
    assert found[:2] == ["first", "none"] and "moved" in found


def test_a_scorer_that_changed_is_not_compared(nights: Nights) -> None:
    nights.next(Case(0))
    changed = nights.next(Case(1, {("chunk", "shapes-graded"): -0.4}, {"shapes-graded": "v2"}))
    row = changed[TUNED]
    assert (row.change, row.reference) == ("scorer", "night-0")
    assert math.isnan(row.difference) and math.isnan(row.p_value)
    assert changed[TUNED._replace(scorer="shapes-exact")].change != "scorer"
    after = nights.next(Case(2, {("chunk", "shapes-graded"): -0.4}, {"shapes-graded": "v2"}))[TUNED]
    assert (after.change, after.reference) == ("none", "night-1")


def test_other_prompts_are_not_compared(nights: Nights) -> None:
    nights.next(Case(0))
    for row in nights.next(Case(1, other_prompts=True)).values():
        assert (row.change, row.reference) == ("prompts", "night-0")
    assert nights.next(Case(2, other_prompts=True))[TUNED].reference == "night-1"


def test_only_the_prompts_that_both_have_are_compared(nights: Nights) -> None:
    nights.next(Case(0, per_category=10))
    row = nights.next(Case(0, per_category=8))[TUNED]
    assert (row.num_prompts, row.change, row.difference) == (48, "same", 0.0)


def test_a_new_variant_has_nothing_to_be_compared_with(nights: Nights) -> None:
    nights.next(Case(0, variants=("dance",)))
    found = nights.next(Case(1))
    assert found[TUNED].change == "first"
    assert found[TUNED._replace(policy="dance")].change == "none"
    assert nights.next(Case(2))[TUNED].reference == "night-1"


def test_single_caption_gives_unknown_change(nights: Nights) -> None:
    nights.next(Case(0))
    row = nights.next(Case(1, {("chunk", "shapes-graded"): -0.4}))[TUNED._replace(split="wise")]
    assert (row.num_prompts, row.num_captions, row.change) == (8, 1, "unknown")
    assert row.difference < -0.2 and math.isnan(row.p_value)


def test_an_evaluation_that_is_recorded_again_is_not_its_own_reference(
    nights: Nights, tmp_path: Path
) -> None:
    nights.next(Case(0))
    nights.next(Case(1))
    again = measured_night(0, Case(2), tmp_path / "again")
    later = [row for row in nights.rows if row.evaluation == "night-1"]
    row = next(r for r in compare(again, later, nights.tables.__getitem__) if r.score == TUNED)
    assert (row.reference, row.change) == ("night-1", "none")
