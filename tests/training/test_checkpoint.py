"""Checkpoints are whole or not there, and only our own are used."""

import errno
import logging
import os
import resource
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch

from chunk_grpo.errors import DataError
from chunk_grpo.training import checkpoint
from chunk_grpo.training.checkpoint import CheckpointStore, TrainingState

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


def store_in(folder: Path, keep: int = 5, identity: str = "code-1") -> CheckpointStore:
    return CheckpointStore(folder, identity, keep)


def saved(folder: Path, *iterations: int) -> list[Path]:
    """Small checkpoints, and their paths."""
    for iteration in iterations:
        store_in(folder).save(TrainingState(iteration, {"w": torch.arange(100.0)}, {}, []))
    return [folder / f"iteration-{iteration:06d}.pt" for iteration in iterations]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def latest_iteration(store: CheckpointStore) -> int:
    state = store.latest()
    assert state is not None
    return state.iteration


def write_sealed(content: object, path: Path) -> None:
    """An archive with any content and a valid checksum: its comment is the CRC-32 of the bytes before it."""
    torch.save(content, path)
    archive = path.read_bytes()[:-2] + b"\x08\x00"
    path.write_bytes(archive + b"%08x" % zlib.crc32(archive))


NOT_WHOLE = "damaged or not a checkpoint (its checksum is missing or wrong)"


def test_saved_state_is_restored(tmp_path):
    folder = tmp_path / "new" / "seed-0"
    store = store_in(folder)
    assert store.latest() is None and store.newest_path() is None
    state = trained_state(7)
    store.save(state)
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
    assert names(folder) == ["iteration-000007.pt"]
    (path,) = folder.iterdir()
    with zipfile.ZipFile(path) as archive:  # the checksum is a comment: other tools can still read the file
        assert archive.testzip() is None and archive.comment == path.read_bytes()[-8:]


@pytest.mark.parametrize(
    ("extra", "place"),
    [
        ({"mean": np.float64(0.5)}, "['extra']['mean'] is of type float64"),
        ({"plan": [1, {"path": Path("x")}]}, "['extra']['plan'][1]['path'] is of type PosixPath"),
        ({"sizes": {(1, 2): 3}}, "['extra']['sizes'] has the key (1, 2)"),
    ],
)
def test_rejects_state_that_could_not_be_loaded(extra, place, tmp_path):
    with pytest.raises(TypeError) as caught:
        store_in(tmp_path).save(TrainingState(1, {}, {}, [], extra))
    assert str(caught.value).startswith(f"{tmp_path}/iteration-000001.pt: state{place}")
    assert names(tmp_path) == []


def test_the_last_ones_are_kept_and_other_files_left_alone(tmp_path):
    others = ["iteration-1.pt", "iteration-0000001.pt", "iteration-000001.txt", "notes.partial"]
    for name in others:
        (tmp_path / name).touch()
    store = store_in(tmp_path, keep=2)
    for iteration in (1, 3, 4, 999_999, 1_000_000):
        store.save(TrainingState(iteration, {}, {}, []))
        assert store.newest_path() == tmp_path / f"iteration-{iteration:06d}.pt"
    assert names(tmp_path) == sorted([*others, "iteration-999999.pt", "iteration-1000000.pt"])
    assert latest_iteration(store) == 1_000_000


def test_wrong_numbers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        store_in(tmp_path, keep=0)
    with pytest.raises(ValueError, match="iteration must be at least 0, got -1"):
        saved(tmp_path, -1)


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from chunk_grpo.training.checkpoint import CheckpointStore, TrainingState

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
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    else:
        calls_left = int(folder.name)
        for name in ("fsync", "replace", "unlink"):
            setattr(os, name, deadly(getattr(os, name)))
        CheckpointStore(folder, "code-1", 1).save(TrainingState(8, {"w": torch.ones(100000)}, {}, []))
"""


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    # Killed at the call number N: of the file's fsync, replace, the folder's fsync, unlink of the old one.
    folders = [tmp_path / str(number) for number in (1, 2, 3, 4)]
    for folder in folders:
        saved(folder, 7)
    before = (folders[0] / "iteration-000007.pt").read_bytes()
    command = [sys.executable, "-c", KILLED, *map(str, folders)]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, timeout=60)
    old, new = "iteration-000007.pt", "iteration-000008.pt"
    found = [names(folder) for folder in folders]
    assert found == [[old, new + ".partial"], [old, new + ".partial"], [old, new], [old, new]]
    for folder, iteration in zip(folders, (7, 7, 8, 8), strict=True):
        assert (folder / old).read_bytes() == before
        store = store_in(folder, keep=1)
        assert latest_iteration(store) == iteration
        store.save(trained_state(9))
        assert names(folder) == ["iteration-000009.pt"]


def test_folders_and_files_are_fsynced(tmp_path, monkeypatch):
    synced: list[int] = []
    monkeypatch.setattr(checkpoint.os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    folder = tmp_path / "new" / "seed-0"
    (path,) = saved(folder, 7)
    # The folder's name, that of the one above, the content of the file, its name.
    assert synced == [entry.stat().st_ino for entry in (folder.parent, tmp_path, path, folder)]


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path):
    (path,) = saved(tmp_path, 7)
    content, store = path.read_bytes(), store_in(tmp_path)
    for place in range(0, len(content), 5):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="its checksum is missing or wrong"):
            store.latest()


def our_content(iteration: int = 3) -> dict[str, object]:
    return {
        "format": checkpoint.FORMAT,
        "identity": "code-1",
        "state": vars(TrainingState(iteration, {}, {}, [])),
    }


class Harmful:
    def __reduce__(self):
        return os.system, ("touch harmed",)


def cut_to(share):
    def write(path):
        (whole,) = saved(path.parent, 3)
        whole.write_bytes(whole.read_bytes()[: int(share * whole.stat().st_size)])

    return write


def sealed(**changes):
    return lambda path: write_sealed(our_content() | changes, path)


FORMAT = f"the format {checkpoint.FORMAT}"


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        *((cut_to(share), NOT_WHOLE) for share in (0.0, 0.001, 0.5, 0.99)),
        (lambda path: write_sealed({"iteration": 3}, path), f"not a checkpoint of {FORMAT}"),
        (lambda path: write_sealed([1, 2], path), f"not a checkpoint of {FORMAT}"),
        (sealed(format="another/1"), f"not a checkpoint of {FORMAT}"),
        (sealed(identity="code-0"), "of another computation (its identity is 'code-0', not 'code-1')"),
        (sealed(state={"iteration": 3}), f"does not hold the fields of {FORMAT}"),
        (lambda path: write_sealed(our_content(4), path), "holds iteration 4, which does not match its name"),
        (sealed(network=Harmful()), "not a readable checkpoint (Weights only load failed"),
    ],
)
def test_another_file_is_refused_with_a_way_out_and_runs_no_code(write, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "iteration-000003.pt"
    write(path)
    with pytest.raises(DataError) as caught:
        store_in(tmp_path).latest()
    assert str(caught.value).startswith(f"{path}: {reason}")
    assert str(caught.value).endswith(f"; delete {tmp_path} to train from the start")
    assert names(tmp_path) == [path.name]


def test_the_previous_one_is_used_with_a_warning(tmp_path, caplog):
    good, cut, foreign, unreadable = saved(tmp_path, 7, 8, 9, 10)
    cut.write_bytes(cut.read_bytes()[:-100])
    write_sealed({"iteration": 9}, foreign)
    unreadable.unlink()
    unreadable.mkdir()
    store = store_in(tmp_path)
    with caplog.at_level(logging.WARNING, checkpoint.__name__):
        assert latest_iteration(store) == 7
    assert [record.getMessage() for record in caplog.records] == [
        f"{unreadable}: cannot be read (Is a directory); {good} is used instead",
        f"{foreign}: not a checkpoint of {FORMAT}; {good} is used instead",
        f"{cut}: {NOT_WHOLE}; {good} is used instead",
    ]
    assert store.newest_path() == good
    assert names(tmp_path) == sorted(path.name for path in (good, cut, foreign, unreadable))


def test_a_refused_one_does_not_push_out_a_good_one(tmp_path):
    good, _, bad = saved(tmp_path, 5, 7, 8)
    bad.write_bytes(b"")
    store = store_in(tmp_path, keep=2)
    assert latest_iteration(store) == 7
    store.save(TrainingState(9, {}, {}, []))  # passes the bad one
    assert names(tmp_path) == [f"iteration-00000{number}.pt" for number in (7, 8, 9)]
    store.save(TrainingState(10, {}, {}, []))
    assert names(tmp_path) == ["iteration-000009.pt", "iteration-000010.pt"]
    assert not good.exists()


@pytest.mark.parametrize("looked", [True, False])
def test_a_newer_one_does_not_push_out_the_one_just_saved(looked, tmp_path):
    _, bad = saved(tmp_path, 5, 9)
    bad.write_bytes(b"")
    store = store_in(tmp_path, keep=1)
    assert not looked or latest_iteration(store) == 5
    store.save(TrainingState(6, {}, {}, []))
    assert names(tmp_path) == ["iteration-000006.pt", "iteration-000009.pt"]
    assert latest_iteration(store) == 6
    store.save(TrainingState(9, {}, {}, []))  # mended
    assert store.newest_path() == bad
    assert latest_iteration(store) == 9


def test_when_none_can_be_used_all_are_named(tmp_path):
    older, newer = saved(tmp_path, 7, 8)
    older.write_bytes(b"")
    store = store_in(tmp_path, identity="code-2")
    with pytest.raises(DataError) as caught:
        store.latest()
    assert str(caught.value) == (
        f"{newer}: of another computation (its identity is 'code-1', not 'code-2'); "
        f"{older}: {NOT_WHOLE}; "
        f"delete {tmp_path} to train from the start"
    )
    assert names(tmp_path) == [older.name, newer.name]


@pytest.mark.parametrize(
    ("function", "number"), [("fsync", errno.ENOSPC), ("fsync", errno.EIO), ("replace", errno.EROFS)]
)
def test_a_save_that_fails_leaves_the_older_ones(function, number, tmp_path, monkeypatch):
    (older,) = saved(tmp_path, 7)
    before = older.read_bytes()

    def fail(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, function, fail)
        with pytest.raises(DataError) as caught:
            store_in(tmp_path, keep=1).save(trained_state(8))
    newer = tmp_path / "iteration-000008.pt"
    assert str(caught.value).startswith(f"{newer}: the checkpoint cannot be saved ({os.strerror(number)}). ")
    assert str(caught.value).endswith(" the newest checkpoint there.")
    assert names(tmp_path) == [older.name]
    assert older.read_bytes() == before
    assert latest_iteration(store_in(tmp_path)) == 7


def test_a_disk_that_fills_up_while_writing(tmp_path):
    # A real limit: torch.save turns the failed write into a RuntimeError of its own.
    saved(tmp_path, 7)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(
            DataError, match=r"iteration-000008.pt: the checkpoint cannot be saved \(File too large\)"
        ):
            store_in(tmp_path).save(TrainingState(8, {"w": torch.ones(100_000)}, {}, []))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["iteration-000007.pt"]


def test_rejects_file_in_place_of_folder(tmp_path):
    folder = tmp_path / "seed-0"
    folder.touch()
    with pytest.raises(
        DataError, match=r"seed-0/iteration-000001.pt: the checkpoint cannot be saved \(File exists\)"
    ):
        saved(folder, 1)
    with pytest.raises(
        DataError, match=r"seed-0: the folder of checkpoints cannot be read \(Not a directory\)"
    ):
        store_in(folder).latest()
