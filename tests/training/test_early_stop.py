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


def test_only_a_strictly_greater_score_is_a_new_best():
    best = BestScore()
    news = [best.update(number, score) for number, score in enumerate([-2.0, -3.0, -2.0, -1.0, -1.0, 0.5])]
    assert news == [True, False, False, True, False, True]
    assert (best.best_iteration, best.best_score) == (5, 0.5)


def test_nothing_is_best_before_the_first_measurement():
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
def test_stops_after_patience_without_improvement(scores, without_news):
    best = fed(*scores)
    assert [best.should_stop(patience) for patience in (1, 2, 3, 4)] == [
        without_news >= patience for patience in (1, 2, 3, 4)
    ]
    assert not best.should_stop(None)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
def test_a_score_that_is_not_finite_is_refused_and_leaves_no_trace(score):
    best = fed(0.5, 0.25)
    before = best.state()
    with pytest.raises(ValueError, match=f"score: must be finite, got {score} at iteration 20"):
        best.update(20, score)
    assert best.state() == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fed(0.5, 0.25).update(9, 0.9), "iteration: must be later than 10, got 9"),
        (lambda: fed(0.5, 0.25).update(10, 0.9), "iteration: must be later than 10, got 10"),
        (lambda: fed(0.5).should_stop(0), "patience: must be at least 1, or None to never stop, got 0"),
        (lambda: BestScore.from_state({"best_iteration": 1}), "state of the best score: needs"),
        (lambda: BestScore.from_state({**fed(0.5).state(), "more": 1}), "state of the best score: needs"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("cut", range(6))
def test_restored_state_gives_the_same_result(cut):
    scores = [0.1, 0.3, 0.2, 0.3, 0.25]
    best = fed(*scores[:cut])
    resumed = BestScore.from_state(json.loads(json.dumps(best.state())))
    for number in range(cut, len(scores)):
        resumed.update(10 * number, scores[number])
    assert resumed.state() == fed(*scores).state()
    assert resumed.state() == {"best_iteration": 10, "best_score": 0.3, "last_iteration": 40, "since_best": 3}
    assert resumed.should_stop(3)
    assert not resumed.should_stop(4)
