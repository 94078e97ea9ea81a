"""What held-out scores decide: the rules by hand, and that training goes back to the best bits."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.config.training import ControllerParams
from chunk_grpo.core.objective import Bounds
from chunk_grpo.training.controller import Controller
from chunk_grpo.training.heldout import HeldoutEvaluation, HeldoutResult
from chunk_grpo.training.learner import IterationState, Learner
from chunk_grpo.training.trainer import Trainer
from chunk_grpo.training.update import Update

from .conftest import CHUNK_WS, Outcome

Train = Callable[..., Outcome]
SETTINGS = ControllerParams(tolerance=0.1, kl_coef=0.02, kl_factor=4.0, clip_factor=0.5, falls=2)
CONTROLLED: dict[str, Any] = {"variant": {**CHUNK_WS, "controlled": True, "kl_coef": 0.0}}
RUN: dict[str, Any] = {"iterations": 4, "checkpoint_every": 4, "ema_decay": 0.5, **CONTROLLED}


def test_the_rule_by_hand() -> None:
    controller = Controller(None, SETTINGS, Bounds(1.0, 0.0))
    assert [controller.judge(score) for score in (0.5, 0.6, 0.5)] == ["best", "best", "within"]
    assert controller.bounds == Bounds(1.0, 0.0)
    assert controller.judge(0.45) == "fallen"
    assert controller.bounds == Bounds(0.5, 0.02)
    assert controller.judge(0.7) == "best"
    assert controller.judge(0.55) == "fallen"
    assert controller.bounds == Bounds(0.25, 0.08)
    assert not controller.has_ended
    assert controller.judge(0.55) == "fallen"
    assert controller.has_ended
    assert controller.metrics() == {"controller/kl_coef": 0.08, "controller/clip_scale": 0.25, "controller/falls": 3.0}


def test_a_kl_coefficient_of_the_variant_grows() -> None:
    controller = Controller(None, SETTINGS, Bounds(1.0, 0.1))
    controller.judge(1.0)
    controller.judge(0.0)
    assert controller.bounds == Bounds(0.5, 0.4)


def test_only_a_strictly_greater_score_is_a_new_best() -> None:
    watch = Controller(1, None, Bounds(1.0))
    assert not watch.has_ended  # nothing was measured
    news = [watch.judge(score) == "best" for score in (-2.0, -3.0, -2.0, -1.0, -1.0, 0.5)]
    assert news == [True, False, False, True, False, True]


@pytest.mark.parametrize(
    ("scores", "without_news"),
    [([0.5], 0), ([0.5, 0.4], 1), ([0.5, 0.4, 0.5], 2), ([0.5, 0.4, 0.6], 0), ([0.5, 0.4, 0.6, 0.6, 0.1, 0.2], 3)],
)
def test_stops_after_patience_without_improvement(scores: list[float], without_news: int) -> None:
    for patience in (1, 2, 3, 4, None):
        watch = Controller(patience, None, Bounds(1.0))
        assert "fallen" not in [watch.judge(score) for score in scores]
        assert watch.has_ended == (patience is not None and without_news >= patience)
    assert watch.metrics() == {}


@pytest.mark.parametrize("cut", range(6))
def test_a_restored_state_goes_on(cut: int) -> None:
    scores = (0.5, 0.1, 0.45, 0.1, 0.2)
    whole, one, other = (Controller(4, SETTINGS, Bounds(1.0)) for _ in range(3))
    verdicts = [whole.judge(score) for score in scores]
    assert verdicts == ["best", "fallen", "within", "fallen", "fallen"]
    before = [one.judge(score) for score in scores[:cut]]
    other.load_state(json.loads(json.dumps(one.state())))
    assert before + [other.judge(score) for score in scores[cut:]] == verdicts
    assert (other.bounds, other.has_ended) == (whole.bounds, True)
    assert (
        other.state()
        == whole.state()
        == {"best": 0.5, "since_best": 4, "kl_coef": 0.08, "clip_scale": 0.25, "falls": 3}
    )


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], None]:
    """Function that replaces the decisive scores of the iterations 0, 1, ...."""
    evaluate = HeldoutEvaluation.evaluate

    def replaced(values: list[float]) -> None:
        made: list[Trainer] = []
        prepare = Trainer.__init__

        def init(self: Trainer, *arguments: Any) -> None:
            made.append(self)
            prepare(self, *arguments)

        def with_score(self: HeldoutEvaluation, *arguments: Any) -> HeldoutResult:
            return replace(evaluate(self, *arguments), decisive=values[made[-1]._done])

        monkeypatch.setattr(Trainer, "__init__", init)
        monkeypatch.setattr(HeldoutEvaluation, "evaluate", with_score)

    return replaced


def bounds_of_updates(monkeypatch: pytest.MonkeyPatch) -> list[Bounds]:
    """The bounds of all updates, as they are made."""
    seen: list[Bounds] = []
    make = Learner._update

    def recording(self: Learner, iteration: IterationState, number: int) -> Update:
        seen.append(self.bounds)
        return make(self, iteration, number)

    monkeypatch.setattr(Learner, "_update", recording)
    return seen


def settings(**changes: Any) -> dict[str, Any]:
    return {"heldout": {"controller": SETTINGS.model_dump() | changes}}


def test_a_fall_goes_back_to_the_best_bits_and_narrows_the_bounds(train, scores, tmp_path, monkeypatch):
    """Scores fall after iteration 2. Iteration 3 starts from the weights, moments and averages after iteration 1."""
    scores([0.5, 0.6, 0.2, 0.6, 0.6])
    seen = bounds_of_updates(monkeypatch)
    made = train(tmp_path / "a", save=True, **RUN, **settings())
    by_iteration = [(seen[i].kl_coef, seen[i].clip_range) for i in range(0, 8, 2)]
    wide, narrow = (0.0, 1e-4), (0.02, 0.5e-4)
    assert [pair[0] for pair in by_iteration] == [wide[0], wide[0], narrow[0], narrow[0]]
    assert [pair[1] / by_iteration[0][1] for pair in by_iteration] == pytest.approx([1, 1, 0.5, 0.5])
    told = {(i, name): value for i, name, value in made.rows if name.startswith("controller/")}
    assert [told[i, "controller/falls"] for i in range(5)] == [0, 0, 1, 1, 1]

    scores([0.5, 0.6, 0.6])
    plain = train(tmp_path / "b", **RUN | {"iterations": 1}, **settings())
    scores([0.5, 0.6, 0.2])
    back = train(tmp_path / "c", save=True, **RUN | {"iterations": 2}, **settings())
    assert back.has_weights_of(plain)


def test_too_many_falls_end_training_at_the_best_policy(train: Train, scores: Any, tmp_path: Path) -> None:
    scores([0.5, 0.6, 0.2, 0.9, 0.9])
    ended = train(tmp_path / "a", **RUN, **settings(falls=0))
    scores([0.5, 0.6])
    best = train(tmp_path / "b", **RUN | {"iterations": 1}, **settings(falls=0))
    assert max(i for i, name, _ in ended.rows if name == "reward_mean") == 2
    assert ended.has_weights_of(best)


@pytest.mark.parametrize("stop_at", [pytest.param(30, marks=pytest.mark.slow), 45])
def test_a_stopped_run_goes_back_to_the_same_bits(stop_at, train, resumed, scores, tmp_path):
    scores([0.5, 0.6, 0.2, 0.3, 0.6])
    whole = train(tmp_path / "whole", **RUN, **settings())
    assert resumed(tmp_path / "stopped", stop_at, **RUN, **settings()).equals(whole)


def test_a_variant_that_is_not_controlled_trains_as_without_a_controller(train, scores, tmp_path):
    scores([0.5, 0.1, 0.1, 0.1])
    plain, beside = (
        train(tmp_path / name, iterations=2, **changes) for name, changes in (("a", {}), ("b", settings()))
    )
    assert plain.without_times() == beside.without_times()
