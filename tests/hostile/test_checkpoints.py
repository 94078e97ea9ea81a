"""Checkpoints that somebody else wrote, with valid checksums: nothing in them runs, and a sentence refuses each."""

from __future__ import annotations

import copy
import os
import pickle
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from chunk_grpo.errors import DataError
from chunk_grpo.training.checkpoint import CheckpointStore, TrainingState
from chunk_grpo.training.checkpoint_files import FORMAT
from chunk_grpo.training.copies import Copies
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.sealing import checksum_of

NAME, PARTS = "iteration-000003.pt", "iteration-000003.shards-1"
MARK = {"sharded tensor": "/network/w", "shape": [2, 3]}
TENSORS = {"/network/w": ([2, 3], [("__0_0.distcp", 0, 100, [0, 0], [2, 3])])}


class Harmful:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harmed",)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def write(folder: Path, shards: Any = None, network: Any = MARK, **changes: Any) -> None:
    """A checkpoint of one sharded tensor, with a valid checksum."""
    (folder / PARTS).mkdir(parents=True, exist_ok=True)
    fields = {"format": FORMAT, "identity": "code-1", "shards": shards}
    state = vars(TrainingState(3, {"w": network}, {}, []))
    torch.save(fields | {"state": state | changes}, folder / NAME)
    archive = (folder / NAME).read_bytes()[:-2] + b"\x08\x00"
    (folder / NAME).write_bytes(archive + b"%08x" % zlib.crc32(archive))


def described(location: Path, **changes: Any) -> dict[str, Any]:
    """A description of the files in the folder of parts."""
    checksums = {path.name: checksum_of(path) for path in (location / PARTS).iterdir()}
    return {"folder": PARTS, "checksums": checksums, "tensors": TENSORS} | changes


def with_pickle(folder: Path, name: str) -> None:
    (folder / PARTS).mkdir(parents=True)
    (folder / PARTS / name).write_bytes(pickle.dumps(Harmful(), protocol=2))


def refused(folder: Path, by: str) -> str:
    """What a training says that finds the checkpoint in its own folder, or among the copies."""
    if by == "disk":
        with pytest.raises(DataError, match="to train from the start") as caught:
            CheckpointStore(folder, "code-1", 1).latest()
        return str(caught.value)
    machine = folder.parent / "machine"
    store = CheckpointStore(machine, "code-1", 1, copies=Copies(str(folder), machine, Processes()))
    assert store.latest() is None
    return "this copy is not used"


PLACES = pytest.mark.parametrize("by", ["disk", "copies"])


@PLACES
def test_a_pickled_table_of_contents_is_never_read(by: str, folder: Path, caplog: Any) -> None:
    location = folder / "given"
    with_pickle(location, ".metadata")
    write(location, described(location))
    said = refused(location, by) + caplog.text
    assert f"{NAME}: names files that are not parts of its tensors" in said
    assert not Path("harmed").exists() and not (folder / "machine" / PARTS).exists()


@PLACES
def test_a_plain_checkpoint_that_names_a_sharded_tensor_is_refused(
    by: str, folder: Path, caplog: Any
) -> None:
    location = folder / "given"
    with_pickle(location, ".metadata")
    write(location)
    assert "lists no pieces of the sharded tensor '/network/w'" in refused(location, by) + caplog.text
    assert not Path("harmed").exists()


@PLACES
def test_a_pickle_as_a_part_is_not_run(by: str, folder: Path) -> None:
    location, machine = folder / "given", folder / "machine"
    with_pickle(location, "__0_0.distcp")
    write(location, described(location))
    copies = Copies(str(location), machine, Processes()) if by == "copies" else None
    found = CheckpointStore(machine if copies else location, "code-1", 1, copies=copies).latest()
    assert found is not None
    with pytest.raises(DataError, match=r"the sharded tensor /network/w cannot be read \((?s:.*)delete"):
        found.network["w"].part(torch.empty(2, 3))
    assert not Path("harmed").exists()


@pytest.mark.parametrize(
    "shards",
    ["x", {}, [], 7, {"folder": PARTS}, {"folder": 7, "checksums": {}, "tensors": {}}, torch.ones(2)],
)
@PLACES
def test_unknown_shard_description_gives_an_error_message(
    by: str, shards: Any, folder: Path, caplog: Any
) -> None:
    write(folder / "given", shards)
    assert "describes its sharded tensors in an unknown way" in refused(folder / "given", by) + caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"folder": "../here"},
        {"folder": str(Path(__file__).parent)},
        {"folder": "iteration-000002.shards-1"},
        {"folder": NAME},
        {"checksums": {"../../here/__0_0.distcp": "0" * 8}},
        {"checksums": {"/etc/passwd": "0" * 8}},
        {"checksums": {"__0_0.distcp\n": "0" * 8}},
    ],
)
@PLACES
def test_a_name_that_leaves_the_folder_of_parts_is_refused(
    by: str, changes: dict[str, Any], folder: Path, caplog: Any
) -> None:
    location = folder / "given"
    with_pickle(location, "__0_0.distcp")
    write(location, described(location, **changes))
    assert "names files that are not parts of its tensors" in refused(location, by) + caplog.text


@pytest.mark.parametrize(
    "piece",
    [
        ("../../../etc/hostname", 0, 100, [0, 0], [2, 3]),
        ("__1_0.distcp", 0, 100, [0, 0], [2, 3]),
        ("__0_0.distcp", -1, 100, [0, 0], [2, 3]),
        ("__0_0.distcp", 0, 100, [0, 1], [2, 3]),
        ("__0_0.distcp", 0, 100, [0, 0], [2, 2]),
        ("__0_0.distcp", 0, 100.0, [0, 0], [2, 3]),
    ],
)
def test_a_piece_outside_its_file_or_tensor_is_refused(piece: Any, folder: Path) -> None:
    with_pickle(folder / "given", "__0_0.distcp")
    write(folder / "given", described(folder / "given", tensors={"/network/w": ([2, 3], [piece])}))
    assert "do not consist of the pieces that it lists" in refused(folder / "given", "disk")


def test_400_random_changes_of_the_description_are_accepted_or_refused_with_a_sentence(folder: Path) -> None:
    """Each changes a value, a key or a type somewhere; the sealed state names the tensor."""
    rng, location = random.Random(45), folder / "given"
    values: list[Any] = [None, -1, 2**70, 1.5, "", "../x", "/etc/passwd", [], {}, (1,), b"x", True]
    values.append(torch.ones(2))
    with_pickle(location, "__0_0.distcp")
    whole = described(location)
    outcomes = set()
    for _ in range(400):
        changed = copy.deepcopy(whole)
        place: Any = changed
        while True:
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            below = place[key]
            if isinstance(below, tuple):
                below = place[key] = list(below)
            if not isinstance(below, dict | list) or not below or rng.random() < 0.2:
                break
            place = below
        if isinstance(place, dict) and rng.random() < 0.3:
            place[rng.choice([7, "", "../x", "w"])] = place.pop(key)
        else:
            place[key] = rng.choice(values)
        write(location, changed)
        try:
            CheckpointStore(location, "code-1", 1).latest()
            outcomes.add("accepted")
        except DataError as error:
            outcomes.add(str(error).split("(")[0].split(NAME)[1][:40])
    assert not Path("harmed").exists() and {path.name for path in folder.iterdir()} == {"given", "here"}
    assert len(outcomes) > 3
