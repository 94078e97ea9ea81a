"""Metrics of a running training, early stops, and kept checkpoints."""

import logging
import re
import time
from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from chunk_grpo.errors import DataError, TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.training import stopping, trainer
from chunk_grpo.training.metrics import fidelity_metrics, warn_of_poor_fidelity
from chunk_grpo.training.run import RunPaths, TrainingData
from chunk_grpo.training.trainer import Trainer
from chunk_grpo.training.update import UpdateStats
from tests.checkpoints import store_in
from tests.shapes_scorers import ScorerForTests

from .conftest import CHUNK_WS, Outcome, method_of, small_params

LORA = {"rank": 4, "alpha": 8.0, "targets": ("to_q", "to_v")}


def series(made: Outcome, metric: str) -> dict[int, float]:
    return {iteration: value for iteration, name, value in made.rows if name == metric}


def test_trackers_get_edited_pictures_beside_the_images(
    train: Any, data: TrainingData, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two prompts with two images each: the source is left of both."""
    shown: list[Any] = []
    sink = SimpleNamespace(log=lambda _, metrics, images=None: shown.append(images), close=lambda **_: None)
    monkeypatch.setattr(trainer, "open_sinks", lambda *_, **options: [sink])
    grey = [lambda level=level: np.full((32, 32, 3), level, dtype=np.uint8) for level in (40, 200)]
    edited = replace(data, heldout=replace(data.heldout, pictures=grey))
    for case in (data, edited):
        train(tmp_path / str(len(shown)), iterations=1, on=case, heldout={"every": 1, "images_per_prompt": 2})
    plain, beside = (shown[first] for first in (0, len(shown) // 2))
    assert beside.shape == (4, 32, 64, 3)
    assert [row.mean() for row in beside[:, :, :32]] == [40, 40, 200, 200]
    assert np.array_equal(beside[:, :, 32:], plain)


def test_trackers_learn_whether_a_training_is_finished(
    train: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    sink = SimpleNamespace(log=lambda *_, **__: None, close=lambda *, is_finished: closed.append(is_finished))
    monkeypatch.setattr(trainer, "open_sinks", lambda *_, **options: [sink])
    with pytest.raises(TransientError, match="training resumes from there"):
        train(tmp_path, iterations=2, stop_at=20)
    assert closed == [False]
    train(tmp_path, iterations=2)
    assert closed == [False, True]


class Falling(ScorerForTests):
    """A scorer whose measurements get worse from call to call but for one."""

    def __init__(self) -> None:
        self._left = iter([0.5, 0.4, 0.9, 0.3, 0.2, 0.1])

    def score(self, batch: ScoreBatch) -> Scores:
        return Scores(np.full(len(batch.prompts), next(self._left)))


def falling(data: TrainingData) -> TrainingData:
    """It takes the place of the scorer that nobody trains on."""
    return replace(data, unseen=Reward({"shapes-exact": Falling()}, {"shapes-exact": 1.0}))


def test_patience_ends_training_and_the_best_policy_is_kept_beside_the_last(train, data, policy, tmp_path):
    """Measured before training and after each iteration: the third one is the best, the fifth ends it."""
    kept = {"patience": 2, "keep_best": True}
    made = train(tmp_path / "a", on=falling(data), iterations=9, save=True, heldout=kept)
    assert list(series(made, "heldout/shapes-exact").values()) == [0.5, 0.4, 0.9, 0.3, 0.2]
    assert max(series(made, "reward_mean")) == 4
    last, best = (policy().with_transformer(tmp_path / "a" / "saved" / name) for name in ("transformer", "best"))
    assert all(torch.equal(made.weights[n], value) for n, value in last.transformer.state_dict().items())
    after_two = {name: value.clone() for name, value in best.transformer.state_dict().items()}
    two = train(tmp_path / "b", on=falling(data), iterations=2)
    assert all(torch.equal(two.weights[n], value) for n, value in after_two.items())


def test_an_average_of_the_weights_is_watched_and_kept(train, policy, tmp_path):
    plain = train(tmp_path / "plain", iterations=1, updates_per_iteration=1)
    averaged = train(tmp_path / "a", iterations=1, updates_per_iteration=1, ema_decay=0.75, save=True)
    assert all(torch.equal(plain.weights[n], averaged.weights[n]) for n in plain.weights)  # training goes on
    kept = policy().with_transformer(tmp_path / "a" / "saved" / "transformer").transformer.state_dict()
    base = policy().transformer.state_dict()
    for name, value in kept.items():
        assert torch.allclose(value, 0.75 * base[name] + 0.25 * plain.weights[name], rtol=0, atol=1e-7)
    assert series(plain, "heldout_reward")[1] != series(averaged, "heldout_reward")[1]


def test_an_adapter_is_trained_and_goes_on_from_halfway(train, policy, tmp_path):
    run: dict[str, Any] = {"iterations": 2, "lora": LORA, "ema_decay": 0.5, "save": True, "checkpoint_every": 2}
    run |= {"heldout": {"keep_best": True}, "old_log_probs": "training", "gradient_checkpointing": True}
    whole = train(tmp_path / "whole", **run)
    with pytest.raises(TransientError):
        train(tmp_path / "stopped", stop_at=19, **run)
    left = store_in(tmp_path / "stopped", identity="test").latest()
    assert left is not None and len(left.extra["unfinished"][0]["updates"]) == 1
    resumed = train(tmp_path / "stopped", **run)
    assert resumed.without_times() == whole.without_times()
    for name in ("transformer", "best"):
        files = [sorted((tmp_path / folder / "saved" / name).iterdir()) for folder in ("whole", "stopped")]
        assert [path.name for path in files[0]] == [path.name for path in files[1]]
        assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*files, strict=True))
        assert sum(path.stat().st_size for path in files[0]) < 400_000  # the adapter alone
    tuned = policy().with_transformer(tmp_path / "whole" / "saved" / "transformer")
    assert tuned.latent_shape == policy().latent_shape
    network = store_in(tmp_path / "whole", identity="test").latest()
    assert network is not None and all("lora" in name for name in network.network)


class Away(ScorerForTests):
    """A reward model that does not answer, and then does."""

    name, version = "away", 1
    answers = False

    def score(self, batch: ScoreBatch) -> Scores:
        if not self.answers:
            raise ConnectionError("nobody there")
        return Scores(np.linspace(0, 1, len(batch.prompts)))


def test_a_reward_that_does_not_answer_stops_training_which_goes_on_later(train, data, tmp_path):
    away = Away()
    on = replace(data, reward=Reward({"shapes-graded": away}, {"shapes-graded": 1.0}, away_seconds=0.0))
    variant = {"objective": "chunk", "plan": "listed", "chunk_rewards": ({"shapes-graded": 1.0},) * 2}
    with pytest.raises(TransientError, match=r"scorer shapes-graded: .*nobody there"):
        train(tmp_path, on=on, variant=variant, iterations=1)
    away.answers = True
    assert set(series(train(tmp_path, on=on, variant=variant, iterations=1), "reward_mean")) == {1}


class Hanging(ScorerForTests):
    """A reward model that stops answering after some calls."""

    name, version = "hanging", 1

    def __init__(self, answers: int) -> None:
        self._left, self.hangs, self.end = answers, Event(), Event()

    def score(self, batch: ScoreBatch) -> Scores:
        self._left -= 1
        if self._left < 0:
            self.hangs.set()
            self.end.wait(60)
        return Scores(np.linspace(0, 1, len(batch.prompts)))


@pytest.mark.parametrize("answers", [0, 1], ids=["held-out images", "a rollout"])
def test_a_stop_does_not_wait_for_a_reward_that_hangs(answers, policy, data, tmp_path, monkeypatch):
    monkeypatch.setattr(stopping, "GIVE_UP_SECONDS", 0.1)
    hanging, params = Hanging(answers), small_params(CHUNK_WS)
    on = replace(data, reward=Reward({"shapes-graded": hanging}, {"shapes-graded": 1.0}))
    paths = RunPaths(tmp_path, "test", tmp_path / "logs", "it")
    trainer = Trainer(policy(), on, method_of(params), params.train, 0, paths)
    start = time.monotonic()
    try:
        with pytest.raises(TransientError, match="stopped after iteration 0 of 3"):
            trainer.run(hanging.hangs.is_set)
        assert time.monotonic() - start < 30
    finally:
        hanging.end.set()


def stats(change: list[float], steps: list[int]) -> UpdateStats:
    one = torch.ones(1)
    by_step = torch.zeros(2, 1 + max(steps), dtype=torch.float64)
    return UpdateStats(one, one.long(), one.bool(), 0.0, torch.tensor(steps), torch.tensor(change), by_step)


def test_ratio_fidelity_is_reported_per_step():
    told = fidelity_metrics(stats([1e-6, -3e-6, 0.0, 2e-6], [0, 0, 2, 2]), 3)
    assert told["fidelity_p99/0"] == pytest.approx(1e-6 + 0.99 * 2e-6)
    assert told["fidelity_p99/2"] == pytest.approx(0.99 * 2e-6)
    assert "fidelity_p99/1" not in told  # no such step was trained
    assert told["fidelity_p99"] == pytest.approx(3e-6 - 0.03 * 1e-6)
    assert told["fidelity_p50"] == pytest.approx(1.5e-6)
    assert told["fidelity_max"] == pytest.approx(3e-6)


@pytest.mark.parametrize(("clip_range", "warned"), [(1e-4, False), (1e-5, True)])
def test_rounding_near_the_clip_range_is_warned_of(clip_range, warned, caplog):
    told = fidelity_metrics(stats([2e-6] * 4, [0] * 4), 1)
    with caplog.at_level(logging.WARNING):
        warn_of_poor_fidelity(told, (clip_range,))
        warn_of_poor_fidelity(told, (0.5, clip_range))
        warn_of_poor_fidelity(told | {"fidelity_later_p99": 0.0}, (clip_range,))  # ratios do not carry it
    assert ["20 % of the clip range 1e-05" in text for text in caplog.messages] == [True] * 2 * warned


class ByPrompt(ScorerForTests):
    """One score for all images of a prompt."""

    def score(self, batch: ScoreBatch) -> Scores:
        return Scores(np.array([float(len(prompt)) for prompt in batch.prompts]))


@pytest.mark.parametrize("equal", [True, False])
def test_equal_rewards_in_every_group_give_the_only_warning(equal, train, data, tmp_path, caplog):
    on = replace(data, reward=Reward({"shapes-graded": ByPrompt()}, {"shapes-graded": 1.0})) if equal else data
    with caplog.at_level(logging.WARNING):
        made = train(tmp_path, on=on, iterations=2)
    said = "the rewards are equal within every group, so nothing is learnt. Either the images have become equal"
    assert [text.partition(" (lower")[0] for text in caplog.messages] == [
        f"iteration {number}: {said}" for number in (1, 2) if equal
    ]
    assert list(series(made, "degenerate_groups").values()) == [2.0 * equal] * 2


def test_training_that_ends_early_saves_its_last_iteration(train, data, tmp_path):
    on = replace(data, reward=Reward({"shapes-graded": ByPrompt()}, {"shapes-graded": 1.0}))
    made = train(tmp_path, on=on, iterations=5, checkpoint_every=None, heldout={"patience": 2})
    assert list(series(made, "seconds_checkpoint")) == [2]
    assert [path.name for path in tmp_path.glob("iteration-*")] == ["iteration-000002"]


class NotANumber(ScorerForTests):
    """A reward model that has gone wrong."""

    def score(self, batch: ScoreBatch) -> Scores:
        return Scores(np.full(len(batch.prompts), np.nan))


def test_an_error_names_the_last_good_checkpoint(train, data, tmp_path):
    train(tmp_path, iterations=1)
    broken = replace(data, reward=Reward({"shapes-graded": NotANumber()}, {"shapes-graded": 1.0}))
    last = f"The last good checkpoint is {tmp_path / 'iteration-000001'}."
    with pytest.raises(DataError, match=rf"got nan; scores must be finite\. Mend .*\. {re.escape(last)}$"):
        train(tmp_path, on=broken, iterations=2)
