"""Checkpoints are whole or not there, and only our own are used."""

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from chunk_grpo.errors import DataError
from chunk_grpo.training import checkpoint, state_files
from chunk_grpo.training.checkpoint import CheckpointStore, TrainingState
from chunk_grpo.training.state_files import FORMAT, MANIFEST, STATE, WHOLE, write_file
from tests.checkpoints import save, store_in

ROOT = Path(__file__).parents[2]


def trained_state(iteration: int) -> TrainingState:
    """The state of a real optimiser after a step."""
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    network(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    rows = [(iteration, "reward_mean", 0.1), (iteration, "kl", 1e-300)]
    extra = {"ema": {"weight": torch.arange(6.0)}, "plan": (2, 3), "name": "guided", "none": None}
    return TrainingState(iteration, network.state_dict(), optimizer.state_dict(), rows, extra)


def saved(folder: Path, *iterations: int) -> list[Path]:
    """Small checkpoints, and their paths."""
    for iteration in iterations:
        save(store_in(folder), small_state(iteration))
    return [folder / f"iteration-{iteration:06d}" for iteration in iterations]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def small_state(iteration: int) -> TrainingState:
    return TrainingState(iteration, {"w": torch.arange(100.0)}, {}, [])


def latest_iteration(store: CheckpointStore) -> int:
    state = store.latest()
    assert state is not None
    return state.iteration


def test_saved_state_is_restored(tmp_path):
    folder = tmp_path / "new" / "seed-0"
    store = store_in(folder)
    assert store.latest() is None and store.newest_path() is None
    state = trained_state(7)
    save(store, state)
    again = store_in(folder).latest()
    assert again is not None
    assert (again.iteration, again.rows) == (7, state.rows)
    assert all(torch.equal(again.network[name], value) for name, value in state.network.items())
    moments = state.optimizer["state"]
    assert len(moments) == 2
    for number, moment in moments.items():
        for name, value in moment.items():
            assert torch.equal(again.optimizer["state"][number][name], value)
    assert again.optimizer["param_groups"] == state.optimizer["param_groups"]
    assert torch.equal(again.extra.pop("ema")["weight"], torch.arange(6.0))
    assert again.extra == {"plan": (2, 3), "name": "guided", "none": None}
    assert names(folder) == ["iteration-000007"]
    assert names(folder / "iteration-000007") == [MANIFEST, STATE, WHOLE]


@pytest.mark.parametrize("dtype", state_files._TYPES)
def test_tensors_of_all_types_and_shapes_come_back(dtype, tmp_path):
    """Also views, which share memory, beside a type of another width."""
    base = torch.arange(24).reshape(4, 6).to(dtype)
    tensors = {"a": base, "row": base[1:3, ::2], "turned": base.T, "number": base[1, 1], "empty": base[:0]}
    tensors["byte"] = torch.arange(3, dtype=torch.uint8)
    state_files.write_tensors(tensors, tmp_path / WHOLE)
    found = load_file(tmp_path / WHOLE)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize(
    ("extra", "place"),
    [
        ({"mean": np.float64(0.5)}, "['extra']['mean'] is of type float64"),
        ({"plan": [1, {"path": Path("x")}]}, "['extra']['plan'][1]['path'] is of type PosixPath"),
        ({"sizes": {(1, 2): 3}}, "['extra']['sizes'] has the key (1, 2)"),
        ({"w": torch.zeros(2, dtype=torch.complex64)}, "['extra']['w'] is of type torch.complex64 tensor"),
    ],
)
def test_rejects_state_that_could_not_be_loaded(extra, place, tmp_path):
    with pytest.raises(TypeError) as caught:
        save(store_in(tmp_path), TrainingState(1, {}, {}, [], extra))
    assert str(caught.value).startswith(f"state{place}")
    assert names(tmp_path) == []


def test_the_last_ones_are_kept_and_other_files_left_alone(tmp_path):
    others = ["iteration-1", "iteration-0000001", "iteration-000001.txt", "notes"]
    for name in others:
        (tmp_path / name).mkdir()
    store = store_in(tmp_path, keep=2)
    for iteration in (1, 3, 4, 999_999, 1_000_000):
        save(store, TrainingState(iteration, {}, {}, []))
        assert store.newest_path() == tmp_path / f"iteration-{iteration:06d}"
    assert names(tmp_path) == sorted([*others, "iteration-999999", "iteration-1000000"])
    save(store, TrainingState(1_000_000, {}, {}, []))  # stopped within the next iteration
    assert names(tmp_path) == sorted([*others, "iteration-999999", "iteration-1000000-1"])
    assert latest_iteration(store) == 1_000_000


def test_the_best_policy_is_part_of_each_checkpoint(tmp_path):
    store, policies = store_in(tmp_path, keep=2), [{"w": torch.full((3,), float(n))} for n in range(3)]
    assert store.best() is None
    for iteration, policy in enumerate(policies):
        store.keep_best(policy)
        save(store, TrainingState(iteration, {}, {}, []))
    assert torch.equal(store_in(tmp_path).latest(1) and load_file(tmp_path / "best.safetensors")["w"], policies[1]["w"])
    store = store_in(tmp_path)
    assert latest_iteration(store) == 2 and torch.equal(store.best()["w"], policies[2]["w"])


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.training.{module} import prepared

def deadly(function):
    def counted(*args, **kwargs):
        global calls_left
        calls_left -= 1
        if calls_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return counted

for folder in map(Path, sys.argv[1:]):
    if child := os.fork():
        print(os.waitpid(child, 0)[1], flush=True)
        continue
    save = prepared(folder)
    calls_left = int(folder.name)
    for name in ("fsync", "replace", "unlink", "rmdir", "mkdir"):
        setattr(os, name, deadly(getattr(os, name)))
    save()
    os._exit(0)
"""


def prepared(folder: Path) -> Callable[[], None]:
    """A checkpoint of iteration 7 and a best policy; saves iteration 8 in its place."""
    store = store_in(folder, keep=1)
    store.keep_best({"w": torch.ones(10)})
    save(store, small_state(7))
    return lambda: save(store, small_state(8))


def kills_at_each_call(module: str, folders: list[Path]) -> int:
    """Kill a save at its n-th change of files for each folder named n; return the number of those that were killed."""
    command = [sys.executable, "-c", KILLED.format(module=module), *map(str, folders)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, check=True, timeout=120, stdout=-1, text=True)
    kills = [status == "9" for status in ended.stdout.split()]
    assert kills == sorted(kills, reverse=True) and not kills[-1]
    return sum(kills)


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    folders = [tmp_path / str(number) for number in range(1, 21)]
    assert kills_at_each_call("test_checkpoint", folders) >= 10
    found = []
    for folder in folders:
        store = store_in(folder, keep=1)
        found.append(latest_iteration(store))
        assert torch.equal(store.best()["w"], torch.ones(10))
        save(store, small_state(9))
        assert names(folder) == ["best.safetensors", "iteration-000009"]
    assert found == sorted(found) and set(found) == {7, 8}


def test_folders_and_files_are_fsynced(tmp_path, monkeypatch):
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    folder = tmp_path / "new" / "seed-0"
    (path,) = saved(folder, 7)
    wanted = [tmp_path, folder.parent, folder, path, *path.iterdir()]
    assert set(synced) == {entry.stat().st_ino for entry in wanted}
    assert synced[-2:] == [(path / MANIFEST).stat().st_ino, path.stat().st_ino]


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path):
    (path,) = saved(tmp_path, 7)
    store = store_in(tmp_path)
    for file in path.iterdir():
        content = file.read_bytes()
        for place in range(0, len(content), 5):
            if content[place : place + 1].isspace():
                continue
            damaged = bytearray(content)
            damaged[place] ^= 1 << place % 7
            file.write_bytes(damaged)
            with pytest.raises(DataError, match="to train from the start"):
                store.latest()
        file.write_bytes(content)
    assert latest_iteration(store) == 7


def rewritten(path: Path, **changes: Any) -> None:
    """Change the manifest."""
    content = json.loads((path / MANIFEST).read_text()) | changes
    (path / MANIFEST).write_text(json.dumps(content))


def with_state(path: Path, content: object) -> None:
    """Replace the plain values, with a valid checksum."""
    files = json.loads((path / MANIFEST).read_text())["files"]
    checksum = write_file(path / STATE, [json.dumps(content).encode()])
    rewritten(path, files=files | {STATE: checksum})


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: cut(path / WHOLE), f"{WHOLE} is damaged (its checksum is wrong)"),
    "lost": (lambda path: (path / STATE).unlink(), f"{STATE} cannot be read (No such file"),
    "manifest cut": (lambda path: cut(path / MANIFEST), f"damaged or not a checkpoint of the format {FORMAT}"),
    "manifest empty": (lambda path: (path / MANIFEST).write_bytes(b""), "damaged or not a checkpoint"),
    "a list": (lambda path: (path / MANIFEST).write_text("[1]"), "damaged or not a checkpoint"),
    "other format": (lambda path: rewritten(path, format="x/1"), "of another computation (its format is 'x/1'"),
    "other run": (lambda path: rewritten(path, identity="0"), "of another computation (its identity is '0'"),
    "other iteration": (
        lambda path: rewritten(path, iteration=4),
        "of another computation (its iteration is 4, not 3)",
    ),
    "no files": (lambda path: rewritten(path, files={}), "does not name the files of a checkpoint"),
    "other fields": (
        lambda path: with_state(path, {"sharded": {}, "state": {"dict": [["iteration", 3]]}}),
        "does not hold the fields of a state",
    ),
}


@pytest.mark.parametrize(("damage", "reason"), REFUSED.values(), ids=REFUSED)
def test_another_folder_is_refused_with_a_way_out(damage, reason, tmp_path):
    (path,) = saved(tmp_path, 3)
    damage(path)
    with pytest.raises(DataError) as caught:
        store_in(tmp_path).latest()
    assert str(caught.value).startswith(f"{path}: {reason}")
    assert str(caught.value).endswith(f"; delete {tmp_path} to train from the start")
    assert names(tmp_path) == [path.name]


def test_the_previous_one_is_used_with_a_warning(tmp_path, caplog):
    good, broken, foreign = saved(tmp_path, 7, 8, 9)
    cut(broken / WHOLE)
    rewritten(foreign, identity="code-0")
    store = store_in(tmp_path)
    with caplog.at_level(logging.WARNING, checkpoint.__name__):
        assert latest_iteration(store) == 7
    messages = [record.getMessage() for record in caplog.records]
    assert [message.split(": ")[0] for message in messages] == [str(foreign), str(broken)]
    assert all(message.endswith(f"; {good} is used instead") for message in messages)
    assert store.newest_path() == good
    assert names(tmp_path) == sorted(path.name for path in (good, broken, foreign))


def test_a_refused_one_does_not_push_out_a_good_one(tmp_path):
    _, _, bad = saved(tmp_path, 5, 7, 8)
    cut(bad / WHOLE)
    store = store_in(tmp_path, keep=2)
    assert latest_iteration(store) == 7
    save(store, TrainingState(9, {}, {}, []))  # passes the bad one
    assert names(tmp_path) == [f"iteration-00000{number}" for number in (7, 8, 9)]
    save(store, TrainingState(10, {}, {}, []))
    assert names(tmp_path) == ["iteration-000009", "iteration-000010"]


@pytest.mark.parametrize("looked", [True, False])
def test_a_newer_one_does_not_push_out_the_one_just_saved(looked, tmp_path):
    _, bad = saved(tmp_path, 5, 9)
    cut(bad / WHOLE)
    store = store_in(tmp_path, keep=1)
    assert not looked or latest_iteration(store) == 5
    save(store, TrainingState(6, {}, {}, []))
    assert names(tmp_path) == ["iteration-000006", "iteration-000009"]
    assert latest_iteration(store) == 6
    save(store, TrainingState(9, {}, {}, []))
    assert names(tmp_path) == ["iteration-000009-1"]
    assert latest_iteration(store) == 9


def test_when_none_can_be_used_all_are_named(tmp_path):
    older, newer = saved(tmp_path, 7, 8)
    (older / MANIFEST).write_bytes(b"")
    with pytest.raises(DataError) as caught:
        store_in(tmp_path, identity="code-2").latest()
    assert str(caught.value).startswith(
        f"{newer}: of another computation (its identity is 'code-1', not 'code-2'); {older}: "
    )


@pytest.mark.parametrize(
    ("function", "number", "said"),
    [("fsync", errno.ENOSPC, "no space left on the disk; nothing was changed"), ("replace", errno.EROFS, "read-only")],
)
def test_a_save_that_fails_leaves_the_older_ones(function, number, said, tmp_path, monkeypatch):
    (older,) = saved(tmp_path, 7)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(DataError, match=f"iteration-000008: cannot write: .*{said}"):
            save(store_in(tmp_path, keep=1), trained_state(8))
    assert names(tmp_path) == [older.name]
    assert latest_iteration(store_in(tmp_path)) == 7


def test_rejects_file_in_place_of_folder(tmp_path):
    folder = tmp_path / "seed-0"
    folder.touch()
    with pytest.raises(DataError, match=r"seed-0: the folder of checkpoints cannot be read \(Not a directory\)"):
        store_in(folder).latest()
