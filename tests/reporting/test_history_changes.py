"""False positive rate of moved scores, and the result for each score."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from chunk_grpo.artifacts import table_from_rows
from chunk_grpo.reporting.history import HistoryRow, Measured, Score, measure
from chunk_grpo.reporting.history_changes import ALPHA, compare, joint_test
from tests.reporting.history_cases import Case, evaluation, write_workspace

TUNED = Score("chunk", "tuned", "eval", "shapes-graded")


def test_one_score_has_the_p_value_of_the_sign_test() -> None:
    """Equal parts: a draw reaches the sum only with all signs equal, 2 of 2^K."""
    test = joint_test(np.full((8, 1), 0.1), np.random.default_rng(0), draws=200_000)
    assert test.p_values[0] == pytest.approx(2 / 2**8, rel=0.05)


def test_parts_that_cancel_have_not_moved() -> None:
    parts = np.array([[0.1], [-0.1], [0.3], [-0.3]])
    assert joint_test(parts, np.random.default_rng(0)).p_values[0] == 1.0


def test_two_equal_scores_count_as_one_and_two_others_as_two() -> None:
    """The signs are drawn for both together: a copy of a score costs nothing, as it would with Bonferroni or Holm."""
    generator = np.random.default_rng(5)
    one = generator.normal(0.5, 1, size=(40, 1))
    other = generator.normal(0, 1, size=(40, 1))
    alone = joint_test(one, np.random.default_rng(0)).p_values[0]
    copied = joint_test(np.hstack([one, one]), np.random.default_rng(0)).p_values
    both = joint_test(np.hstack([one, other]), np.random.default_rng(0)).p_values
    assert alone == copied[0] == copied[1]
    assert both[0] == pytest.approx(1 - (1 - alone) ** 2, rel=0.15)
    assert joint_test(one, np.random.default_rng(0), groups=2).p_values[0] == 2 * alone


def test_a_difference_beyond_its_band_has_moved_and_no_other() -> None:
    generator = np.random.default_rng(2)
    for _ in range(50):
        parts = generator.normal(generator.uniform(0, 1.2, size=5), 1, size=(30, 5)) / 30
        test = joint_test(parts, generator, draws=999)
        assert ((np.abs(parts.sum(axis=0)) > test.bands) == (test.p_values <= ALPHA)).all()


def noise(generator: np.random.Generator, kind: str) -> NDArray[np.float64]:
    """[40, 12] one evaluation's means of prompts: scores of the same images, so they go together."""
    level = np.linspace(-1.5, 1.5, 40)[:, None]
    common = generator.normal(size=(40, 1))
    images = level + 0.6 * common + 0.8 * generator.normal(size=(40, 12))
    if kind == "right or not":
        return (images > 1).astype(float)
    return np.exp(images) if kind == "skewed" else images


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [("normal", 16, 46), ("skewed", 16, 46), ("right or not", 0, 46)],  # 3000 times 1 %: 30, twice 5.4 or so
)
def test_any_of_twelve_scores_is_said_to_move_in_one_evaluation_of_a_hundred(
    kind: str, least: int, most: int
) -> None:
    """Exact for any distribution; with ties, as of scores that are 0 or 1, rarer."""
    generator = np.random.default_rng(11)
    alarms = 0
    for _ in range(3000):
        parts = (noise(generator, kind) - noise(generator, kind)) / 40
        test = joint_test(parts[:, np.abs(parts).any(axis=0)], generator, draws=999)
        alarms += bool((test.p_values <= ALPHA).any())
    assert least <= alarms <= most


def test_a_true_change_is_found() -> None:
    """40 prompts, a shift of one standard deviation of the differences, in one of twelve scores."""
    generator = np.random.default_rng(3)
    found = 0
    for _ in range(200):
        parts = generator.normal(size=(40, 12))
        parts[:, 4] += 1
        test = joint_test(parts / 40, generator, draws=999)
        found += bool(test.p_values[4] <= ALPHA)
    assert found >= 195


def measured_night(number: int, case: Case, root: Path) -> Measured:
    return measure(write_workspace(root / f"night-{number}", case), evaluation(number))


class Nights:
    """Evaluations one after the other, as a schedule has them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rows: list[HistoryRow] = []
        self.tables: dict[str, object] = {}
        self.number = 0

    def next(self, case: Case) -> Mapping[Score, HistoryRow]:
        measured = compare(measured_night(self.number, case, self.root), self.rows, self.tables.__getitem__)  # type: ignore[arg-type]
        self.tables[measured.evaluation.name] = measured.prompts
        self.rows += measured.rows
        self.number += 1
        return {row.score: row for row in measured.rows}


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
    row = moved[TUNED]
    assert (row.reference, row.p_value <= ALPHA) == ("night-0", True)
    assert row.difference < -row.band < 0
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


def test_one_caption_cannot_tell_however_often_it_is_drawn(nights: Nights) -> None:
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
    row = next(r for r in compare(again, later, nights.tables.__getitem__).rows if r.score == TUNED)  # type: ignore[arg-type]
    assert (row.reference, row.change) == ("night-1", "none")


def night_of(generator: np.random.Generator, number: int, levels: float = 1.0) -> Measured:
    """Twelve scores of 30 prompts of 15 captions, new noise of the images and nothing else."""
    common = generator.normal(size=30)
    template = HistoryRow(
        f"night-{number}", evaluation(number).evaluated_at, "tiny", "m", "c", number, "", "", "eval", "clip", "v1",
        0.0, 0.0, 0.0, 0.0, 1.0, 1, 30, 15, 30,
    )  # fmt: skip
    rows, means = [], []
    for policy in ("base", "dance", "chunk"):
        for mode in ("a", "b", "c", "d"):
            rows.append(replace(template, policy=policy, mode=mode))
            means += [
                {
                    "evaluation": template.evaluation, "policy": policy, "mode": mode, "split": "eval",
                    "scorer": "clip", "prompt_id": f"eval-{prompt}", "prompt": f"caption {prompt % 15}",
                    "mean": levels * prompt + common[prompt] + generator.normal(), "num_images": 1,
                }
                for prompt in range(30)
            ]  # fmt: skip
    return Measured(evaluation(number), tuple(rows), table_from_rows(means, "evaluation_prompts"))


def test_false_alarms_of_many_nights() -> None:
    """The whole way, references among it: 1 % of 200 nights is 2; 7 or more would be a chance of 1 in 200."""
    generator = np.random.default_rng(21)
    rows: list[HistoryRow] = []
    tables, alarms = {}, 0
    for number in range(201):
        night = night_of(generator, number)
        measured = compare(night, rows[-12:], tables.__getitem__)
        tables[night.evaluation.name] = night.prompts
        rows += measured.rows
        alarms += any(row.change == "moved" for row in measured.rows)
    assert alarms <= 6


def test_differences_are_paired_by_prompt() -> None:
    """The spread between the levels of prompts does not matter."""
    found = []
    for levels in (0.0, 100.0):
        generator = np.random.default_rng(4)
        before, after = night_of(generator, 0, levels), night_of(generator, 1, levels)
        found.append(compare(after, before.rows, lambda name, table=before.prompts: table).rows)  # type: ignore[misc]
    for near, far in zip(*found, strict=True):
        assert far.difference == pytest.approx(near.difference, abs=1e-9)
        assert (far.p_value, far.band) == (near.p_value, pytest.approx(near.band, rel=1e-9))
