"""The best score and the patience, on sequences worked by hand; a state that is saved loses nothing."""

import json

import pytest

from chunk_grpo.training.early_stop import BestScore


def fed(*scores: float) -> BestScore:
    """Scores of iterations 0, 10, 20, ..."""
    best = BestScore()
    for number, score in enumerate(scores):
        best.update(10 * number, score)
    return best


def test_only_a_strictly_greater_score_is_a_new_best() -> None:
    best = BestScore()
    news = [best.update(number, score) for number, score in enumerate([-2.0, -3.0, -2.0, -1.0, -1.0, 0.5])]
    assert news == [True, False, False, True, False, True]
    assert (best.best_iteration, best.best_score) == (5, 0.5)


def test_of_equal_scores_the_earliest_iteration_stays() -> None:
    best = fed(0.1, 0.7, 0.7, 0.7)
    assert (best.best_iteration, best.best_score) == (10, 0.7)


def test_nothing_is_best_before_the_first_measurement() -> None:
    best = BestScore()
    assert (best.best_iteration, best.best_score, best.state()) == (None, None, {})
    assert not best.should_stop(1)


@pytest.mark.parametrize(
    ("scores", "without_news"),
    [
        ([0.5], 0),
        ([0.5, 0.4], 1),
        ([0.5, 0.4, 0.5], 2),
        ([0.5, 0.4, 0.6], 0),
        ([0.5, 0.4, 0.6, 0.6, 0.1, 0.2], 3),
    ],
)
def test_it_stops_when_the_last_measurements_brought_nothing(scores: list[float], without_news: int) -> None:
    best = fed(*scores)
    assert [best.should_stop(patience) for patience in (1, 2, 3, 4)] == [
        without_news >= patience for patience in (1, 2, 3, 4)
    ]
    assert not best.should_stop(None)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
def test_a_score_that_is_not_finite_is_refused_and_leaves_no_trace(score: float) -> None:
    best = fed(0.5, 0.25)
    before = best.state()
    with pytest.raises(ValueError, match=f"score: must be finite, got {score} at iteration 20"):
        best.update(20, score)
    assert best.state() == before


@pytest.mark.parametrize("iteration", [9, 10])
def test_an_iteration_is_measured_once_and_in_order(iteration: int) -> None:
    best = fed(0.5, 0.25)
    with pytest.raises(ValueError, match=f"iteration: must be later than 10, got {iteration}"):
        best.update(iteration, 0.9)


@pytest.mark.parametrize("patience", [0, -1])
def test_patience_is_at_least_one(patience: int) -> None:
    with pytest.raises(
        ValueError, match=f"patience: must be at least 1, or None to never stop, got {patience}"
    ):
        fed(0.5).should_stop(patience)


@pytest.mark.parametrize("cut", range(6))
def test_a_run_that_goes_on_from_its_state_ends_alike(cut: int) -> None:
    scores = [0.1, 0.3, 0.2, 0.3, 0.25]
    best = fed(*scores[:cut])
    resumed = BestScore.from_state(json.loads(json.dumps(best.state())))
    for number in range(cut, len(scores)):
        resumed.update(10 * number, scores[number])
    assert resumed.state() == fed(*scores).state()
    assert resumed.state() == {"best_iteration": 10, "best_score": 0.3, "last_iteration": 40, "since_best": 3}
    assert resumed.should_stop(3)
    assert not resumed.should_stop(4)


@pytest.mark.parametrize("state", [{"best_iteration": 1}, {**fed(0.5).state(), "more": 1}])
def test_another_state_is_refused(state: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="state of the best score: needs"):
        BestScore.from_state(state)
