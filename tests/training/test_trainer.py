"""The loop on the real toy checkpoint: repeatable to the byte, stoppable anywhere, and it does what it says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chunk_grpo.errors import DataError, TransientError
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.training.checkpoint import TrainingState
from chunk_grpo.training.journal import FILE, read_journal
from chunk_grpo.training.processes import Processes
from tests.checkpoints import store_in

from .conftest import Outcome

Train = Callable[..., Outcome]


def checkpoint(folder: Path) -> TrainingState | None:
    return store_in(folder, identity="test").latest()


@pytest.fixture(scope="module")
def whole(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run of three iterations that nobody stopped."""
    return train(tmp_path_factory.mktemp("whole"), checkpoint_every=3)


def test_a_run_is_a_function_of_its_seed_and_each_iteration_of_those_before(train, whole, tmp_path):
    short, other = (train(tmp_path / f"{seed}", seed=seed, iterations=2) for seed in (0, 4))
    of_the_end = ("step_", "distance_")
    assert [row for row in short.without_times() if not row[1].startswith(of_the_end)] == [
        row for row in whole.without_times() if row[0] <= 2
    ]
    assert short.without_times() != other.without_times()
    assert not short.has_weights_of(other)


@pytest.mark.parametrize(
    "stop_at", [4, 16, 37, *(pytest.param(look, marks=pytest.mark.slow) for look in (1, 9, 12, 19, 26, 33, 50))]
)
def test_a_stopped_run_ends_as_one_that_was_not(stop_at, train, whole, tmp_path):
    """Wherever it stopped: in the rollout, in an update, between two of them, or while being measured."""
    run: dict[str, Any] = {"checkpoint_every": 3, "trackers": ("tensorboard",)}
    with pytest.raises(
        TransientError, match=r"stopped after iteration ([0-2]) of 3; kept in .*/iteration-00000\1(-1)?\. "
    ):
        train(tmp_path, stop_at=stop_at, **run)
    assert checkpoint(tmp_path) is not None
    assert read_journal(tmp_path / "logs" / "it" / FILE).ended is None
    resumed = train(tmp_path, **run)
    assert resumed.equals(whole)
    journal_and_tracker_tell_each_iteration_once(tmp_path / "logs" / "it", resumed)


def journal_and_tracker_tell_each_iteration_once(folder: Path, made: Outcome) -> None:
    lines = [json.loads(line) for line in (folder / FILE).read_text().splitlines()[1:]]
    assert [line["iteration"] for line in lines if "reward_mean" in line.get("metrics", {})] == [1, 2, 3]
    told = [(i, *pair) for i, values in read_journal(folder / FILE).metrics.items() for pair in values.items()]
    assert {row for row in told if not row[1].startswith(("seconds_", "rate_"))} == set(made.without_times())
    seen = EventAccumulator(str(folder)).Reload()
    for metric in ("reward_mean", "heldout_reward", "grad_norm"):
        values = {iteration: value for iteration, name, value in made.rows if name == metric}
        assert {event.step: event.value for event in seen.Scalars(metric)} == pytest.approx(values, rel=1e-6)
        assert len(seen.Scalars(metric)) == len(values)
    assert [event.step for event in seen.Images("heldout")] == [0, 1, 2, 3]


def test_a_run_that_is_stopped_again_and_again_gets_there(train, whole, tmp_path):
    """Each is stopped at the twelfth look at the request, in rollouts and in updates, and the later ones a bit later.

    The distance from the base takes nine looks in one go.
    """
    sampled, unfinished, attempts = 0, 0, 0
    while True:
        attempts += 1
        try:
            made = train(tmp_path / "a", stop_at=12 + attempts // 3, checkpoint_every=3)
            break
        except TransientError:
            state = checkpoint(tmp_path / "a")
            assert state is not None
            unfinished += state.extra["unfinished"] is not None
            sampled += state.extra["sampled"] != [[]]
    assert attempts > 3
    assert sampled > 0 and unfinished > 0
    assert made.equals(whole)


def test_a_finished_run_is_not_trained_again(train, tmp_path):
    path = tmp_path / "a"
    first = train(path, iterations=1)
    again = train(path, iterations=1)
    # The clock's too: nothing ran. What saving took is known only after it.
    assert again.rows == [row for row in first.rows if row[1] != "seconds_checkpoint"]
    assert again.has_weights_of(first)


def test_the_last_checkpoint_has_moments_only_if_its_state_is_kept(train, whole, tmp_path):
    """A finished training writes its policy from it. A longer training goes on from the checkpoint before."""
    run: dict[str, Any] = {"iterations": 2, "checkpoint_every": 1, "checkpoints_kept": 3}
    kept, ended = (tmp_path / name for name in ("kept", "ended"))
    short = train(ended, **run)
    assert checkpoint(ended).optimizer == {}
    assert store_in(ended, identity="test").latest(1).optimizer["state"]
    with pytest.raises(TransientError):  # asked to stop after the last iteration, it saves once more
        train(ended, stop_at=2, keep_state=True, **run)
    assert checkpoint(ended).optimizer == {}
    assert train(ended, keep_state=True, **run).has_weights_of(short)
    train(kept, keep_state=True, **run)
    assert checkpoint(kept).optimizer["state"]
    for folder, first in ((kept, 3), (ended, 2)):
        begun = len(checkpoint(folder).rows)
        assert train(folder, iterations=3, checkpoint_every=3).equals(whole), begun
        journal = read_journal(folder / "logs" / "it" / FILE)
        assert journal.heading.done == first - 1


def test_metrics_tell_every_iteration(whole):
    of = {(iteration, metric): value for iteration, metric, value in whole.rows}
    assert len(of) == len(whole.rows)
    # Held-out images are scored by what is not trained on too, and described.
    of_images = [f"heldout_images/{name}" for name in ("saturation", "edge_density", "colour_entropy", "diversity")]
    for name in ("heldout_reward", "heldout/shapes-exact", "heldout/shapes-graded", *of_images):
        assert [i for i, metric, _ in whole.rows if metric == name] == [0, 1, 2, 3]
    for iteration in (1, 2, 3):
        parts = of[iteration, "reward/shapes-graded"] + 0.6 * of[iteration, "reward/shapes-vivid"]
        assert of[iteration, "reward_mean"] == pytest.approx(parts)
        assert of[iteration, "ratio_min"] <= 1 <= of[iteration, "ratio_max"]
        assert 0 <= of[iteration, "clip_fraction"] <= 1
        assert of[iteration, "grad_norm"] > 0
        assert of[iteration, "fidelity_p99"] < 1e-5  # in float32
        # One of two chunks (1 or 3 steps) for each of 2 x 3 images.
        assert 6 <= of[iteration, "trained_steps"] <= 18
        for metric in ("seconds_rollout", "seconds_reward", "seconds_update"):
            assert of[iteration, metric] > 0
    assert of[1, "kl"] == pytest.approx(0, abs=1e-3)
    assert of[3, "kl"] > 0  # the policy has left its reference, which stays where it was


def test_the_second_update_is_off_policy(train, tmp_path):
    """With fraction 1 and a single update the ratio is 1; the second update has another policy."""
    alone = train(tmp_path / "a", iterations=1, updates_per_iteration=1)
    both = train(tmp_path / "b", iterations=1, updates_per_iteration=2, learning_rate=1e-3)
    ratios = [{m: v for _, m, v in made.rows if m.startswith("ratio")} for made in (alone, both)]
    assert set(ratios[0].values()) == {1.0}
    assert ratios[1]["ratio_max"] - ratios[1]["ratio_min"] > 1e-6


def test_weights_move_by_about_the_learning_rate(train, policy, tmp_path):
    """One AdamW step moves each weight by at most its learning rate (and the decay)."""
    before = policy().transformer.state_dict()
    made = train(tmp_path / "a", iterations=1, updates_per_iteration=1, learning_rate=1e-4)
    moved = max(float((made.weights[name] - value).abs().max()) for name, value in before.items())
    assert 0.5e-4 < moved < 1.2e-4


def test_a_ratio_that_is_not_finite_ends_the_run_with_a_message(train, tmp_path):
    with pytest.raises(
        DataError,
        match=r"iteration 1, process 0: update 1: an importance ratio is not finite\. Lower the learning rate .*"
        r"The last good checkpoint is the base model\.",
    ):
        train(tmp_path / "a", iterations=1, learning_rate=1e30)
    assert checkpoint(tmp_path / "a") is None


@pytest.mark.parametrize("norm", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_changes_no_weights(norm, train, tmp_path, monkeypatch):
    """All ratios of the first update are 1, so that they say nothing of its gradient."""

    def no_step(self: torch.optim.AdamW) -> None:
        raise AssertionError("the optimiser took a step")

    monkeypatch.setattr(Processes, "clip_gradient", lambda *_: norm)
    monkeypatch.setattr(torch.optim.AdamW, "step", no_step)
    with pytest.raises(DataError, match=r"iteration 1, process 0: update 0: the gradient is not finite\. Lower"):
        train(tmp_path, iterations=1)
    assert checkpoint(tmp_path) is None


def test_a_scorers_error_names_the_process_in_which_it_arose(train, tmp_path, monkeypatch):
    """As `Processes.by_all` has it, for the process that prints it is another one."""

    def refuse(self: Reward, batch: object) -> None:
        error = DataError("scorer it: refuses an image.")
        error.process = 1
        raise error

    monkeypatch.setattr(Reward, "scores", refuse)
    with pytest.raises(DataError, match=r"iteration 1, process 1: scorer it: refuses an image\. The last good"):
        train(tmp_path, iterations=1, heldout={"every": 2})
