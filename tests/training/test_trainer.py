"""The loop on the real toy checkpoint: repeatable to the byte, stoppable anywhere, and it does what it says."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from chunk_grpo.errors import DataError, TransientError
from chunk_grpo.families.flux import FluxFamily
from chunk_grpo.training.checkpoint import CheckpointStore, TrainingState
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.run import TrainingData

from .conftest import Outcome

Train = Callable[..., Outcome]


def checkpoint(folder: Path) -> TrainingState | None:
    return CheckpointStore(folder, "test", 2).latest()


@pytest.fixture(scope="module")
def whole(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run of three iterations that nobody stopped."""
    return train(tmp_path_factory.mktemp("whole"), checkpoint_every=3)


def same_weights(a: Outcome, b: Outcome) -> bool:
    return all(torch.equal(a.weights[name], b.weights[name]) for name in a.weights)


def test_the_same_seed_gives_the_same_bytes(train: Train, tmp_path: Path) -> None:
    first, second, other = (train(tmp_path / f"{i}", seed=s, iterations=2) for i, s in enumerate((3, 3, 4)))
    assert first.without_times() == second.without_times()
    assert same_weights(first, second)
    assert first.without_times() != other.without_times()
    assert not same_weights(first, other)


@pytest.mark.parametrize("stop_at", [1, 4, 9, 16, 26, 37, 50])
def test_a_stopped_run_ends_as_one_that_was_not(
    stop_at: int, train: Train, whole: Outcome, tmp_path: Path
) -> None:
    """Wherever it stopped: in the rollout, in an update, between two of them, or while being measured."""
    folder = tmp_path / "stopped"
    with pytest.raises(
        TransientError, match=r"stopped after iteration ([0-2]) of 3; kept in .*/iteration-00000\1\.pt\. "
    ):
        train(folder, stop_at=stop_at, checkpoint_every=3)
    assert checkpoint(folder) is not None
    resumed = train(folder, checkpoint_every=3)
    assert resumed.without_times() == whole.without_times()
    assert same_weights(resumed, whole)


def test_a_run_that_is_stopped_again_and_again_gets_there(
    train: Train, whole: Outcome, tmp_path: Path
) -> None:
    """Each attempt is stopped at the twelfth look at the request; a rollout has ten, so it gets to the updates."""
    unfinished, attempts = 0, 0
    while True:
        attempts += 1
        try:
            made = train(tmp_path / "a", stop_at=12, checkpoint_every=3)
            break
        except TransientError:
            state = checkpoint(tmp_path / "a")
            assert state is not None
            unfinished += state.extra["unfinished"] is not None
    assert attempts > 3
    assert unfinished > 0
    assert made.without_times() == whole.without_times()
    assert same_weights(made, whole)


def test_a_finished_run_is_not_trained_again(train: Train, tmp_path: Path) -> None:
    path = tmp_path / "a"
    first = train(path, iterations=1)
    again = train(path, iterations=1)
    # The clock's too: nothing ran. What saving took is known only after it.
    assert again.rows == [row for row in first.rows if row[1] != "seconds_checkpoint"]
    assert same_weights(first, again)


def test_metrics_tell_every_iteration(train: Train, tmp_path: Path) -> None:
    made = train(tmp_path / "a", iterations=3)
    of = {(iteration, metric): value for iteration, metric, value in made.rows}
    assert len(of) == len(made.rows)
    assert [i for i, metric, _ in made.rows if metric == "heldout_reward"] == [0, 1, 2, 3]
    for iteration in (1, 2, 3):
        parts = of[iteration, "reward/shapes-graded"] + 0.6 * of[iteration, "reward/shapes-vivid"]
        assert of[iteration, "reward_mean"] == pytest.approx(parts)
        assert of[iteration, "ratio_min"] <= 1 <= of[iteration, "ratio_max"]
        assert 0 <= of[iteration, "clip_fraction"] <= 1
        assert of[iteration, "grad_norm"] > 0
        # One of two chunks (1 or 3 steps) for each of 2 x 3 images.
        assert 6 <= of[iteration, "trained_steps"] <= 18
        for metric in ("seconds_rollout", "seconds_reward", "seconds_update"):
            assert of[iteration, metric] > 0
    assert of[1, "kl"] == pytest.approx(0, abs=1e-3)
    assert of[3, "kl"] > 0  # the policy has left its reference, which stays where it was


def test_the_second_update_is_off_policy(train: Train, tmp_path: Path) -> None:
    """With a fraction of one and a single update the ratio is 1; the second update sees another policy."""
    alone = train(tmp_path / "a", iterations=1, updates_per_iteration=1)
    both = train(tmp_path / "b", iterations=1, updates_per_iteration=2, learning_rate=1e-3)
    ratios = [{m: v for _, m, v in made.rows if m.startswith("ratio")} for made in (alone, both)]
    assert set(ratios[0].values()) == {1.0}
    assert ratios[1]["ratio_max"] - ratios[1]["ratio_min"] > 1e-6


def test_weights_move_by_about_the_learning_rate(
    train: Train, policy: Callable[[], FluxFamily], tmp_path: Path
) -> None:
    """One AdamW step moves each weight by at most its learning rate (and the decay)."""
    before = policy().transformer.state_dict()
    made = train(tmp_path / "a", iterations=1, updates_per_iteration=1, learning_rate=1e-4)
    moved = max(float((made.weights[name] - value).abs().max()) for name, value in before.items())
    assert 0.5e-4 < moved < 1.2e-4


def test_a_ratio_that_is_not_finite_ends_the_run_with_a_message(train: Train, tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"iteration 1, process 0: update 1: an importance ratio is not finite\. Lower train.learning_rate .*"
        r"The last good checkpoint is the base model\.",
    ):
        train(tmp_path / "a", iterations=1, learning_rate=1e30)
    assert checkpoint(tmp_path / "a") is None


@pytest.mark.parametrize("norm", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_changes_no_weights(
    norm: float, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ratios of the first update are 1, so that they say nothing of its gradient."""

    def no_step(self: torch.optim.AdamW) -> None:
        raise AssertionError("the optimiser took a step")

    monkeypatch.setattr(Processes, "clip_gradient", lambda *_: norm)
    monkeypatch.setattr(torch.optim.AdamW, "step", no_step)
    with pytest.raises(
        DataError, match=r"iteration 1, process 0: update 0: the gradient is not finite\. Lower"
    ):
        train(tmp_path, iterations=1)
    assert checkpoint(tmp_path) is None


def test_a_longer_run_goes_on_from_a_shorter_one_s_state(train: Train, tmp_path: Path) -> None:
    """Random streams are functions of the iteration, so the number of iterations planned changes nothing before."""
    short = train(tmp_path / "a", iterations=2)
    longer = train(tmp_path / "b", iterations=3)
    assert short.without_times() == [row for row in longer.without_times() if row[0] <= 2]


def test_the_task_stays_as_it_is(train: Train, data: TrainingData, tmp_path: Path) -> None:
    embeds = data.prompts.conditioning.prompt_embeds.clone()
    train(tmp_path / "a", iterations=1)
    assert torch.equal(data.prompts.conditioning.prompt_embeds, embeds)
