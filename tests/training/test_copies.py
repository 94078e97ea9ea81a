"""Copies of checkpoints: another machine resumes from the newest whole one; a store that fails stops no training."""

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from chunk_grpo.artifacts import storage
from chunk_grpo.errors import DataError, TransientError
from chunk_grpo.training import checkpoint, copies
from chunk_grpo.training.checkpoint import CheckpointStore, TrainingState
from chunk_grpo.training.copies import remove_copies
from chunk_grpo.training.state_files import MANIFEST, STATE, WHOLE, encoded, read_state
from tests.checkpoints import save, store_in
from tests.training.test_checkpoint import kills_at_each_call, with_state


def store_on(machine: Path, location: str | None) -> CheckpointStore:
    """Checkpoints of one machine, with copies at a location that all machines reach, or without copies."""
    return store_in(machine, keep=1, copies=location)


def state(iteration: int) -> TrainingState:
    return TrainingState(iteration, {"w": torch.full((50,), float(iteration))}, {}, [(iteration, "kl", 0.1)])


def save_each(store: CheckpointStore, *iterations: int) -> None:
    for iteration in iterations:
        save(store, state(iteration))
    store.settle()


def folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def resumed(store: CheckpointStore, last: int = 99) -> int | None:
    found = store.latest(last)
    assert found is None or torch.equal(found.network["w"], state(found.iteration).network["w"])
    return None if found is None else found.iteration


@pytest.fixture
def bucket_folder(tmp_path: Path) -> Path:
    return tmp_path / "bucket" / "key"


@pytest.fixture
def first(tmp_path: Path, bucket_folder: Path) -> CheckpointStore:
    return store_on(tmp_path / "first", str(bucket_folder))


@pytest.fixture
def second(tmp_path: Path, bucket_folder: Path) -> CheckpointStore:
    return store_on(tmp_path / "second", str(bucket_folder))


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING)
    ours = (checkpoint.__name__, copies.__name__)
    return lambda: [record.getMessage() for record in caplog.records if record.name in ours]


def test_another_machine_resumes_and_only_the_newest_copy_is_kept(first, second, bucket_folder, tmp_path, warnings):
    assert resumed(second) is None
    save_each(first, 1, 2, 3)
    assert folders(bucket_folder) == ["iteration-000003"]
    assert resumed(second) == 3
    copied, own = tmp_path / "second" / "iteration-000003", tmp_path / "first" / "iteration-000003"
    assert names(copied) == names(own) == [MANIFEST, STATE, WHOLE]
    assert all((copied / name).read_bytes() == (own / name).read_bytes() for name in names(own))
    assert second.newest_path() == copied
    save_each(second, 4)
    assert folders(bucket_folder) == folders(tmp_path / "second") == ["iteration-000004"]
    (warning,) = warnings()
    assert warning.startswith(f"{bucket_folder}/iteration-000003: newer than the checkpoints in ")


def test_the_same_in_an_object_store(bucket: str, tmp_path):
    first, second = (store_on(tmp_path / name, f"{bucket}/key") for name in ("first", "second"))
    assert resumed(second) is None
    save_each(first, 1, 2)
    assert {name.split("/")[0] for name in storage.sizes_below(f"{bucket}/key")} == {"iteration-000002"}
    assert resumed(second) == 2
    remove_copies(f"{bucket}/key")
    assert storage.sizes_below(bucket) == {}
    remove_copies(f"{bucket}/key")
    assert resumed(store_on(tmp_path / "third", f"{bucket}/key")) is None


def test_the_newest_is_taken_wherever_it_is(first, second, bucket_folder, tmp_path):
    save_each(first, 4)
    for iteration, newest in ((3, 4), (5, 5)):
        alone = store_on(tmp_path / str(iteration), None)
        save(alone, state(iteration))
        assert resumed(store_on(tmp_path / str(iteration), str(bucket_folder))) == newest
    # One of the same iteration on the own disk is as good.
    save(store_on(tmp_path / "second", None), state(4))
    (bucket_folder / "iteration-000004" / WHOLE).write_bytes(b"")
    assert resumed(second) == 4


def test_a_shorter_run_leaves_and_passes_the_copies_of_a_longer_one(first, second, bucket_folder):
    save_each(first, 9)
    assert resumed(second, last=5) is None
    save_each(second, 2, 5)
    assert folders(bucket_folder) == ["iteration-000005", "iteration-000009"]
    assert resumed(second, last=5) == 5
    assert resumed(second) == 9


def damage(file: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Change a file of a copied checkpoint."""
    return lambda path: (path / file).write_bytes(change((path / file).read_bytes()))


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (damage(WHOLE, lambda content: content[:-1]), f"{WHOLE} is damaged (its checksum is wrong)"),
    "in part": (lambda path: (path / WHOLE).unlink(), f"{WHOLE} cannot be read (No such file"),
    "other run": (damage(MANIFEST, lambda content: content.replace(b"code-1", b"code-0")), "of another computation"),
    "other names": (
        damage(MANIFEST, lambda content: content.replace(b'"state.json"', b'"../notes": "0", "state.json"')),
        "does not name the files of a checkpoint",
    ),
}


@pytest.mark.parametrize(("change", "reason"), DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("has_own", [False, True])
def test_a_copy_that_is_damaged_or_in_part_is_not_used(
    change, reason, has_own, first, second, bucket_folder, tmp_path, warnings
):
    save_each(first, 7)
    if has_own:
        save(store_on(tmp_path / "second", None), state(5))
    copy = bucket_folder / "iteration-000007"
    change(copy)
    assert resumed(second) == (5 if has_own else None)
    (warning,) = warnings()
    assert warning.startswith(f"{copy}: {reason}") and warning.endswith("; this copy is not used")
    save_each(second, 6, 7)
    assert folders(tmp_path / "second") == folders(bucket_folder) == ["iteration-000007"]
    assert resumed(first) == 7


def test_a_copy_without_a_manifest_is_none(first, second, bucket_folder, warnings):
    save_each(first, 7)
    (bucket_folder / "iteration-000007" / MANIFEST).unlink()
    assert resumed(second) is None and warnings() == []


def test_a_copy_replaces_a_damaged_checkpoint_of_the_same_iteration(first, tmp_path, bucket_folder, warnings):
    save_each(first, 7)
    own = tmp_path / "first" / "iteration-000007"
    damage(WHOLE, flipped)(own)
    assert resumed(store_on(tmp_path / "first", str(bucket_folder))) == 7
    assert warnings() == [
        f"{own}: {WHOLE} is damaged (its checksum is wrong); {bucket_folder}/iteration-000007 is used instead"
    ]
    assert resumed(store_on(tmp_path / "first", None)) == 7


def test_damaged_file_and_copy_are_reported(first, tmp_path, bucket_folder):
    save_each(first, 7)
    for folder in (tmp_path / "first", bucket_folder):
        damage(WHOLE, flipped)(folder / "iteration-000007")
    with pytest.raises(DataError, match=r"delete .*first to train from the start"):
        resumed(first)


def test_the_best_policy_comes_along(first, second):
    for iteration in (1, 3):
        first.keep_best(state(iteration).network)
        save_each(first, iteration, iteration + 1)
    assert resumed(second) == 4
    assert torch.equal(second.best()["w"], state(3).network["w"])


def test_other_files_at_the_location_are_left_alone(first, bucket_folder):
    bucket_folder.mkdir(parents=True)
    (bucket_folder / "notes.txt").touch()
    save_each(first, 1, 2)
    assert folders(bucket_folder) == ["iteration-000002", "notes.txt"]


def test_a_store_that_fails_is_a_warning_and_the_next_checkpoint_is_copied(
    first, second, bucket_folder, tmp_path, warnings
):
    bucket_folder.parent.touch()  # a file where a folder should be
    save_each(first, 1)
    (warning,) = warnings()
    assert warning.startswith(f"{bucket_folder}: the newest checkpoint is not copied")
    assert re.search(rf"{bucket_folder}/iteration-000001/\S+: cannot write: ", warning)
    assert folders(tmp_path / "first") == ["iteration-000001"]
    bucket_folder.parent.unlink()
    save_each(first, 2)
    assert len(warnings()) == 1
    assert resumed(second) == 2


def test_copies_that_cannot_be_removed_are_named(first, bucket_folder, warnings, monkeypatch):
    save_each(first, 1)
    monkeypatch.setattr(copies.storage, "remove_file", lambda *_: 1 / 0)
    remove_copies(str(bucket_folder))
    assert warnings() == [
        f"{bucket_folder}: the copies of a finished training are not removed (division by zero); remove them"
    ]


def test_a_checkpoint_that_was_not_copied_removes_no_older_copy(first, bucket_folder, warnings, monkeypatch):
    """The last checkpoint of a training is not copied."""
    save_each(first, 1)
    with monkeypatch.context() as patch:
        patch.setattr(copies.storage, "put_file", lambda *_: 1 / 0)
        save_each(first, 2)
    save(first, state(3), copied=False)
    first.settle()
    assert len(warnings()) == 1 and "division by zero" in warnings()[0]
    assert folders(bucket_folder) == ["iteration-000001"]


def test_a_store_that_does_not_answer_stops_a_training_that_begins(s3_port, tmp_path):
    """Else it would begin anew, though there may be a copy."""
    with pytest.raises(TransientError, match="the object store does not answer"):
        resumed(store_on(tmp_path / "first", "s3://bucket/key"))


def prepared(folder: Path) -> Callable[[], None]:
    """A copied checkpoint of iteration 7; saves and copies iteration 8 in its place."""
    store = store_on(folder / "first", str(folder / "bucket"))
    save_each(store, 7)
    return lambda: save_each(store, 8)


def test_a_kill_at_any_moment_loses_at_most_the_checkpoint_that_is_being_copied(tmp_path):
    places = [tmp_path / str(number) for number in range(1, 41)]
    assert kills_at_each_call("test_copies", places) >= 20
    found = [resumed(store_on(place / "second", str(place / "bucket"))) for place in places]
    assert found == sorted(found) and set(found) == {7, 8}


def test_a_training_goes_on_elsewhere_to_the_same_bytes(train, tmp_path):
    """With the best policy, from within an iteration; the copies of a run that has ended hold no last checkpoint."""
    settings = {"heldout": {"keep_best": True}, "save": True, "copies": str(tmp_path / "bucket")}
    whole = train(tmp_path / "whole", **settings | {"copies": None})
    with pytest.raises(TransientError, match="stopped after iteration 1 of 3"):
        train(tmp_path / "first", stop_at=35, **settings)
    assert read_state(tmp_path / "bucket" / "iteration-000001-1")["extra"]["unfinished"]
    shutil.rmtree(tmp_path / "first")
    found = train(tmp_path / "second", **settings)
    assert found.without_times() == whole.without_times()
    for folder in ("transformer", "best"):
        one, other = (tmp_path / name / "saved" / folder for name in ("whole", "second"))
        assert names(one) == names(other)
        assert all((one / name).read_bytes() == (other / name).read_bytes() for name in names(one))
    assert not [name for name in folders(tmp_path / "bucket") if "000003" in name]


@pytest.fixture(scope="module")
def stopped(train, tmp_path_factory):
    """Copies of a training that was stopped within its second iteration."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(TransientError, match="stopped after iteration 1 of 3"):
        train(folder / "first", stop_at=35, copies=str(folder / "bucket"))
    return folder / "bucket"


@pytest.mark.parametrize(
    "changes", [{"optimizer": {"state": 0}}, {"rows": [1, 2]}, {"extra": {}}, {"network": {}}, {"optimizer": [0.5]}]
)
def test_a_copy_whose_values_do_not_fit_the_training_ends_it_with_a_sentence(changes, stopped, train, tmp_path):
    settings = {"copies": str(shutil.copytree(stopped, tmp_path / "bucket"))}
    (copy,) = (tmp_path / "bucket").iterdir()
    content = json.loads((copy / STATE).read_text())
    fields = dict(content["state"]["dict"]) | {name: encoded(value, {}) for name, value in changes.items()}
    with_state(copy, content | {"state": {"dict": list(fields.items())}})
    with pytest.raises(DataError, match=r"iteration-000001(-1)?: its values do not fit this training|no such weight"):
        train(tmp_path / "second", **settings)
