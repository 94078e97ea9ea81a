"""A checkpoint is written beside the training, of the state at its beginning."""

import threading
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chunk_grpo.artifacts import storage
from chunk_grpo.errors import DataError
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.planning import cost
from chunk_grpo.training import checkpoint, state_files
from chunk_grpo.training.checkpoint import CheckpointStore
from chunk_grpo.training.trainer import Trainer
from tests.checkpoints import save, store_in
from tests.training.test_checkpoint import latest_iteration, trained_state
from tests.training.worker import Job, result, run_pair

SECONDS = 60
"""For which a write waits at most."""


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that writes no tensor before the event is set."""
    free, write = threading.Event(), state_files.write_tensors

    def held_up(*arguments: Any) -> str:
        assert free.wait(SECONDS)
        return write(*arguments)

    monkeypatch.setattr(state_files, "write_tensors", held_up)
    yield free
    free.set()


def wait_for_the_files(store: CheckpointStore) -> None:
    assert store._saving is not None
    wait([store._saving.written], SECONDS)


def test_later_changes_are_not_in_it(disk: threading.Event, tmp_path: Path) -> None:
    store, state = store_in(tmp_path), trained_state(7)
    before = {name: value.clone() for name, value in state.network.items()}
    store.begin(state)
    for value in state.network.values():
        value.zero_()
    state.rows.append((8, "reward_mean", 0.2))
    disk.set()
    store.finish()
    found = store_in(tmp_path).latest()
    assert found is not None
    assert all(torch.equal(found.network[name], value) for name, value in before.items())
    assert [number for number, _, _ in found.rows] == [7, 7]


def test_it_has_the_best_policy_of_its_beginning(disk: threading.Event, tmp_path: Path) -> None:
    disk.set()
    store = store_in(tmp_path)
    store.keep_best({"w": torch.ones(2)})
    store.begin(trained_state(7))
    store.keep_best({"w": torch.zeros(2)})
    store.finish()
    again = store_in(tmp_path)
    assert latest_iteration(again) == 7
    best = again.best()
    assert best is not None
    assert torch.equal(best["w"], torch.ones(2))


def test_it_counts_when_it_is_written(disk: threading.Event, tmp_path: Path) -> None:
    store = store_in(tmp_path, keep=1)
    disk.set()
    save(store, trained_state(6))
    disk.clear()
    store.begin(trained_state(7))
    store.finish_if_written()
    assert latest_iteration(store_in(tmp_path)) == 6
    disk.set()
    wait_for_the_files(store)
    store.finish_if_written()
    assert [path.name for path in tmp_path.iterdir()] == ["iteration-000007"]


def test_the_next_one_waits_for_it(disk: threading.Event, tmp_path: Path) -> None:
    store = store_in(tmp_path, keep=2)
    store.begin(trained_state(7))
    assert store.newest_path() is None
    disk.set()
    store.begin(trained_state(8))
    store.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-000007", "iteration-000008"]


def test_one_process_completes_it_after_an_error_of_the_training(disk, tmp_path):
    store = store_in(tmp_path)
    store.begin(trained_state(7))
    assert store.newest_path() is None
    disk.set()
    store.wait()
    assert latest_iteration(store) == 7


def test_the_plan_counts_the_same_wait() -> None:
    assert cost.PROMPT_SECONDS == checkpoint.PROMPT_SECONDS


def test_a_small_state_is_whole_at_once(tmp_path: Path) -> None:
    store_in(tmp_path).begin(trained_state(7))
    assert latest_iteration(store_in(tmp_path)) == 7


@pytest.mark.parametrize("finish", [CheckpointStore.finish_if_written, CheckpointStore.finish])
def test_an_error_is_raised_when_it_is_finished(finish, tmp_path, monkeypatch):
    store = store_in(tmp_path)
    save(store, trained_state(6))

    begun = threading.Event()

    def full(*_: Any) -> str:
        assert begun.wait(SECONDS)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_files, "write_tensors", full)
    store.begin(trained_state(7))
    begun.set()
    wait_for_the_files(store)
    with pytest.raises(DataError, match=r"iteration-000007: cannot write: .*no space left on the disk"):
        finish(store)
    assert [path.name for path in tmp_path.iterdir()] == ["iteration-000006"]
    assert latest_iteration(store) == 6


def test_a_slow_copy_holds_up_no_later_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, put = threading.Event(), storage.put_file

    def slow(*arguments: Any) -> None:
        assert free.wait(SECONDS)
        put(*arguments)

    monkeypatch.setattr(storage, "put_file", slow)
    local, away = tmp_path / "local", tmp_path / "away"
    store = store_in(local, keep=1, copies=str(away))
    save(store, trained_state(6))
    store.begin(trained_state(7))
    store.finish_if_written()
    assert latest_iteration(store_in(local)) == 6  # its folder stays until it is copied
    free.set()
    store.settle()
    assert [path.name for path in local.iterdir()] == ["iteration-000007"]
    assert [path.name for path in away.iterdir()] == ["iteration-000007"]


def test_training_goes_on_meanwhile_and_ends_with_the_same_weights(disk, train, tmp_path, monkeypatch):
    iterate = Trainer._iterate

    def seen(trainer: Trainer, iteration: int) -> None:
        iterate(trainer, iteration)
        if iteration == 2:  # the checkpoint of iteration 1 is not written yet
            assert trainer._checkpoints.newest_path() is None
            disk.set()

    monkeypatch.setattr(Trainer, "_iterate", seen)
    beside = train(tmp_path / "beside", checkpoint_every=1)
    monkeypatch.setattr(Trainer, "_iterate", iterate)
    alone = train(tmp_path / "alone", checkpoint_every=None)
    assert beside.equals(alone)


@pytest.mark.slow
def test_processes_save_shards_beside_the_training(prompts: PromptSet, tmp_path: Path) -> None:
    """Checkpoints after each of three iterations; then a training from the second one ends with the same weights.

    In the other tests test_processes.py stops one after the first of its checkpoints.
    """
    whole = Job(train={"shard_weights": True, "group_size": 4}, folder="whole")
    longer = replace(whole, folder="resumed", train={**whole.train, "keep_state": True, "iterations": 2})
    resumed = replace(longer, train={**longer.train, "iterations": 3})
    run_pair({"whole": whole, "longer": longer, "resumed": resumed}, prompts, tmp_path)
    for rank in (0, 1):
        found, again = (result(tmp_path, name, rank) for name in ("whole", "resumed"))
        assert found.error == again.error == ""
        assert again.has_weights_of(found)
