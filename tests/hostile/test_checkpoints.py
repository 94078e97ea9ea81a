"""Checkpoints that somebody else wrote, with valid checksums: nothing in them runs, and a sentence refuses each."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from chunk_grpo.errors import DataError
from chunk_grpo.training.checkpoint import TrainingState
from chunk_grpo.training.state_files import MANIFEST, STATE, WHOLE, write_file, write_tensors
from tests.checkpoints import save, store_in

NAME, PART = "iteration-000003", "part-0.safetensors"


class Harmful:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harmed",)


@pytest.fixture(autouse=True)
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with a checkpoint that has a sharded tensor."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder = tmp_path / "given"
    save(store_in(folder), TrainingState(3, {"v": torch.ones(2)}, {}, [(3, "kl", 0.5)]))
    content = json.loads((folder / NAME / STATE).read_text())
    content["state"]["dict"][1][1]["dict"].append(["w", {"tensor": "w"}])
    content["sharded"] = {"w": [[2, 3], {PART: [[0, 0], [2, 3]]}]}
    write(folder, STATE, json.dumps(content).encode())
    write_tensors({"w": torch.ones(2, 3)}, folder / NAME / PART)
    write(folder, PART, (folder / NAME / PART).read_bytes())
    return folder


def write(folder: Path, name: str, content: bytes) -> None:
    """Replace a file, with a valid checksum."""
    manifest = json.loads((folder / NAME / MANIFEST).read_text())
    (folder / NAME / name).parent.mkdir(parents=True, exist_ok=True)
    manifest["files"][name] = write_file(folder / NAME / name, [content])
    (folder / NAME / MANIFEST).write_text(json.dumps(manifest))


def used(folder: Path, by: str) -> torch.Tensor:
    """The sharded tensor, as a training reads it from its own folder or from a copy."""
    store = store_in(folder) if by == "disk" else store_in(folder.parent / "machine", copies=str(folder))
    with store.fitting():
        found = store.latest()
        if found is None:
            raise DataError("this copy is not used")
        return torch.as_tensor(found.network["w"].part(torch.empty(2, 3)))


PLACES = pytest.mark.parametrize("by", ["disk", "copies"])


@PLACES
def test_the_checkpoint_is_used_as_it_is(by: str, given: Path) -> None:
    assert torch.equal(used(given, by), torch.ones(2, 3))


@PLACES
@pytest.mark.parametrize("name", [STATE, WHOLE, PART, MANIFEST])
def test_a_pickle_in_place_of_a_file_is_not_run(name: str, by: str, given: Path) -> None:
    content = pickle.dumps(Harmful(), protocol=2)
    if name == MANIFEST:
        (given / NAME / name).write_bytes(content)
    else:
        write(given, name, content)
    with pytest.raises(DataError):
        used(given, by)
    assert not Path("harmed").exists()


@PLACES
@pytest.mark.parametrize("name", ["../../here/x", "/tmp/x", ".metadata", "part-0.safetensors\n", "notes", ""])
def test_a_name_that_is_not_a_file_of_a_checkpoint_is_refused(name: str, by: str, given: Path, caplog: Any) -> None:
    manifest = json.loads((given / NAME / MANIFEST).read_text())
    manifest["files"][name] = "0" * 8
    (given / NAME / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DataError) as caught:
        used(given, by)
    assert "does not name the files of a checkpoint" in str(caught.value) + caplog.text


@pytest.mark.parametrize(
    "described",
    [
        "x", {}, [], 7, [[2, 3]], [[2, 3], {}], [[2, 3], {"../x": [[0, 0], [2, 3]]}], [[2, 3], {PART: [[0], [2]]}],
        [[2, 3], {WHOLE: [[0, 0], [2, 3]]}], [[2, 3], {PART: [[0, 1], [2, 3]]}], [[2, 3], {PART: [[0, 0], [2, 2]]}],
        [[2, 3], {PART: [[-1, 0], [2, 3]]}], [[2, 3], {PART: [[0, 0.0], [2, 3]]}], [[2, 3], {PART: ["ab", "cd"]}],
    ],
)  # fmt: skip
def test_pieces_that_do_not_make_up_their_tensor_are_refused(described: Any, given: Path) -> None:
    content = json.loads((given / NAME / STATE).read_text())
    content["sharded"]["w"] = described
    write(given, STATE, json.dumps(content).encode())
    with pytest.raises(DataError, match=f"{given}"):
        used(given, "disk")


@pytest.mark.parametrize("name", [STATE, MANIFEST])
def test_200_random_changes_are_accepted_or_refused_with_a_sentence(name: str, given: Path) -> None:
    """Each changes a value, a key or a type somewhere."""
    rng, values = (random.Random(45), [None, -1, 2**70, 1.5, "", "../x", "/etc/passwd", [], {}, [1], True, "tensor"])
    whole, outcomes = json.loads((given / NAME / name).read_text()), set()
    for _ in range(200):
        changed = copy.deepcopy(whole)
        place: Any = changed
        while True:
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            below = place[key]
            if not isinstance(below, dict | list) or not below or rng.random() < 0.2:
                break
            place = below
        if isinstance(place, dict) and rng.random() < 0.3:
            place[rng.choice(["", "../x", "w"])] = place.pop(key)
        else:
            place[key] = rng.choice(values)
        if name == STATE:
            write(given, name, json.dumps(changed).encode())
        else:
            (given / NAME / name).write_text(json.dumps(changed))
        try:
            used(given, "disk")
            outcomes.add("accepted")
        except DataError as error:
            outcomes.add(str(error).split("(")[0].split(NAME)[-1][:40])
    assert not Path("harmed").exists() and {path.name for path in given.parent.iterdir()} == {"given", "here"}
    assert len(outcomes) > 3


def test_deep_nesting_is_refused(given: Path) -> None:
    write(given, STATE, b'{"sharded": {}, "state": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    with pytest.raises(DataError, match="does not hold a state"):
        used(given, "disk")
