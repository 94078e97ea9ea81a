"""Curves that can reveal reward hacking, and last and best iterations of runs."""

import dataclasses

import numpy as np
import pytest

from chunk_grpo.reporting.reward_hacking import Ending, by_distance, conclusion, endings, tradeoffs, watched_curves
from chunk_grpo.reporting.series import Curve
from chunk_grpo.reporting.training_tables import endings_table
from tests.reporting.conftest import metrics_source, training_settings

SETTINGS = training_settings(iterations=10, unseen=("exact",), decisive="heldout/exact")


def run(seed: int, scores: dict[int, float], last: int) -> list[tuple[int, int, str, float]]:
    return [(seed, at, "heldout/exact", value) for at, value in scores.items()] + [(seed, last, "kl", 0.0)]


def test_curves_include_only_variants_with_the_metric() -> None:
    new = metrics_source((0, 0, "heldout/exact", 0.5), (0, 5, "heldout/exact", 0.75), (0, 0, "heldout/graded", 1.0))
    old = metrics_source((0, 1, "kl", 0.0))
    found = watched_curves({"v": new, "w": old}, SETTINGS)
    assert list(found) == ["heldout/exact"]
    assert list(found["heldout/exact"]) == ["v"]
    assert found["heldout/exact"]["v"].mean.tolist() == [0.5, 0.75]
    assert watched_curves({"w": old}, SETTINGS) == {}


def test_a_run_that_ended_early_and_its_best_policy() -> None:
    early = run(0, {0: 0.1, 2: 0.9, 4: 0.9, 6: 0.3}, 6)  # the earliest of equal scores is the best
    whole = run(1, {0: 0.5, 5: 0.2, 10: 0.4}, 10)
    sources = {"v": metrics_source(*early, *whole), "w": metrics_source((0, 10, "kl", 0.0))}
    found = endings(sources, SETTINGS)
    assert found == (Ending("v", (6, 10), (2, 0)), Ending("w", (10,), (None,)))
    table = endings_table(found, SETTINGS)
    assert table is not None
    assert table.columns == ("variant", "last iteration, of 10", "best by heldout/exact")
    assert [[cell.text for cell in row.cells] for row in table.rows] == [["6, 10", "2, 0"], ["10", "–"]]


def test_endings_table_only_for_early_ends_or_kept_best() -> None:
    sources = {"v": metrics_source(*run(0, {0: 0.1, 10: 0.2}, 10))}
    assert endings(sources, SETTINGS) == ()
    assert endings_table((), SETTINGS) is None
    keeping = dataclasses.replace(SETTINGS, keeps_best=True)
    table = endings_table(endings(sources, keeping), keeping)
    assert table is not None
    assert table.columns[2] == "best by heldout/exact, kept"


def curve(first: tuple[float, float], last: tuple[float, float]) -> Curve:
    """A curve from one band over the training seeds to another."""
    low, high = np.array([first, last]).T
    return Curve(np.array([0, 10]), (low + high) / 2, low, high)


RISES, FALLS, WAVERS = (curve((0.4, 0.5), (0.6, 0.8)), curve((0.4, 0.5), (0.1, 0.3)), curve((0.4, 0.5), (0.2, 0.45)))


@pytest.mark.parametrize(
    ("reward", "unseen", "answer"),
    [
        (RISES, RISES, "No sign of it"),
        (RISES, WAVERS, "No sign of it"),
        (RISES, FALLS, "There are signs of it: the training reward rises, but exact falls for v."),
        (WAVERS, FALLS, "No sign of it"),
        (RISES, None, "Undecided"),
    ],
)
def test_the_reward_is_hacked_if_it_rises_while_another_scorer_falls(
    reward: Curve, unseen: Curve | None, answer: str
) -> None:
    curves = {} if unseen is None else {"heldout/exact": {"v": unseen}}
    curves["heldout_images/saturation"] = {"v": RISES, "w": FALLS}
    text = conclusion({"v": reward, "w": WAVERS}, curves, SETTINGS)
    assert text.startswith(answer)
    assert text.endswith("the images change: saturation by −56 to +56 %.")
    assert conclusion({"v": reward}, {}, SETTINGS) == ""


def test_a_trade_off_pairs_reward_and_unseen_score_at_the_same_iterations() -> None:
    def line(iterations: list[int], values: list[float]) -> Curve:
        numbers = np.array(values)
        return Curve(np.array(iterations), numbers, numbers - 1, numbers + 1)

    rewards = {"v": line([0, 5, 10], [0.1, 0.2, 0.3]), "w": line([0, 10], [0.1, 0.4])}
    scores = {"heldout/exact": {"v": line([0, 10], [0.9, 0.7])}, "heldout_images/saturation": {}}
    settings = training_settings(unseen=("exact", "not measured"))
    found = tradeoffs(rewards, scores, settings)
    assert list(found) == ["exact"]
    assert list(found["exact"]) == ["v"]
    reward, score = found["exact"]["v"]
    assert reward.x.tolist() == score.x.tolist() == [0, 10]
    assert (reward.mean.tolist(), score.mean.tolist()) == ([0.1, 0.3], [0.9, 0.7])


def test_reward_over_distance_has_both_ends_of_each_seed() -> None:
    """Seed 1 ended early, at iteration 5."""
    rewards = [(0, 0, 0.5), (0, 5, 0.9), (0, 10, 0.7), (1, 0, 0.3), (1, 5, 0.5)]
    made = metrics_source(
        *((seed, at, "heldout_reward", value) for seed, at, value in rewards),
        (0, 10, "distance_from_base", 0.02),
        (1, 5, "distance_from_base", 0.04),
    )
    found = by_distance({"v": made, "old": metrics_source((0, 0, "heldout_reward", 0.5))})
    assert list(found) == ["v"]
    distance, reward = found["v"]
    assert distance.mean.tolist() == pytest.approx([0.0, 0.03])
    assert reward.mean.tolist() == pytest.approx([0.4, 0.6])
