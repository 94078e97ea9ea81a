"""stages/inputs.py: what DVC cannot see by itself is in its records, and nothing else is."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CHECKPOINT, ROOT, Workspace, prompt_file
from tests.params_edits import put
from tests.test_config import ASKED

OWN = "def brightness(images, prompts, metadata, **options):\n    return images.mean(axis=(1, 2, 3))\n"
EXTERNAL: dict[str, Any] = {"kind": "external", "splits": ["eval"], "batch_size": 8, "version": 1}
EXTERNAL |= {"source": "own_scorer:brightness", "options": {"a": 1}}
EXECUTOR: dict[str, Any] = {"kind": "subprocess", "python": None, "script": "worker.py", "device": None}
EXECUTOR |= {"start_seconds": 60.0, "timeout_seconds": 60.0}


def records(made: Workspace) -> dict[str, bytes]:
    return {name: made.files()[f"inputs/{name}.json"] for name in ("model", "prompts", "scorers", "names")}


@pytest.fixture
def own(workspace: Workspace) -> Workspace:
    """Checkout with a user's checkpoint, prompts and scorer."""
    shutil.copytree(CHECKPOINT, workspace.root / "model")
    (workspace.root / "prompts.txt").write_text("a red circle\na blue square\n")
    (workspace.root / "own_scorer.py").write_text(OWN)
    (workspace.root / "weights.bin").write_bytes(b"1")
    (workspace.root / "worker.py").write_text("# never started by this stage\n")
    file = prompt_file("prompts.txt")
    for edit in (
        put("model.checkpoint", "model"),
        put("prompts.source", "file"),
        put("prompts.wise_count", 0),
        put("prompts.train_file", file),
        put("prompts.benchmarks.more", {"kind": "file", "file": file, "count": None}),
        put("scorers", {"own": EXTERNAL | {"files": ["weights.bin"]}}),
        put("executors", {"own": EXECUTOR}),
        put("rewards", {"own": 1.0}),
        put("train.heldout.scorers", []),
    ):
        workspace.edit(edit)
    return workspace


def ran(made: Workspace) -> dict[str, bytes]:
    assert made.run("inputs") == 0
    return records(made)


Edit = Callable[[Path], object]


def appended(name: str, text: str = "# edited\n") -> Edit:
    def edit(root: Path) -> None:
        with (root / name).open("a") as stream:
            stream.write(text)

    return edit


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    return [name for name in before if before[name] != after[name]]


FILES: list[tuple[Edit, list[str]]] = [
    (appended("prompts.txt", "a green cross\n"), ["prompts"]),
    (appended("own_scorer.py"), ["scorers"]),
    (lambda root: (root / "weights.bin").write_bytes(b"2"), ["scorers"]),
    (appended("worker.py"), ["scorers"]),
    (appended("model/vae/config.json", " "), ["model"]),
    (appended("model/model_index.json", " "), ["model"]),
    (lambda root: (root / "model/tokenizer/more.txt").touch(), ["model"]),
    (lambda root: (root / "model/whole.safetensors").touch(), []),
    (lambda root: (root / "other.py").touch(), []),
    (lambda root: (root / "prompts.txt").unlink(), ["prompts"]),  # left to the stages that read it
    (lambda root: (root / "own_scorer.py").unlink(), ["scorers"]),
]


def test_imports_no_torch() -> None:
    """The stage runs at every `dvc repro`, and torch takes longer than all of its work."""
    code = "import sys, stages.inputs; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"


def test_file_edit_changes_records_of_its_readers(own: Workspace) -> None:
    before = ran(own)
    for number, (edit, expected) in enumerate(FILES):
        edit(own.root)
        after = ran(own)
        assert changed(before, after) == expected, number
        before = after


def test_repeated_run_gives_the_same_bytes(own: Workspace) -> None:
    assert ran(own) == ran(own)
    shutil.rmtree(own.root / ".inputs")
    assert ran(own) == records(own)


def reorder(section: dict[str, Any]) -> None:
    names = list(section)
    values = {name: section[name] for name in reversed(names)}
    section.clear()
    section.update(values)


VALUES: list[tuple[Callable[[dict[str, Any]], object], list[str]]] = [
    (lambda raw: raw["scorers"]["own"]["options"].update(a=True), ["scorers"]),
    (lambda raw: raw["scorers"]["own"]["options"].update(a=1.0), ["scorers"]),
    (lambda raw: reorder(raw["variants"]), ["names"]),
    (lambda raw: reorder(raw["chunks"]["plans"]), ["names"]),
    (lambda raw: raw["train"].update(learning_rate=0.1), []),
]


def test_records_distinguish_values_that_dvc_equates(own: Workspace) -> None:
    before = ran(own)
    for number, (change, expected) in enumerate(VALUES):
        own.edit(change)
        after = ran(own)
        assert changed(before, after) == expected, number
        before = after


def test_a_hub_id_needs_a_commit(
    own: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    own.edit(lambda raw: raw["model"].update(checkpoint="owner/model", revision="main"))
    assert own.run("inputs") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "model.revision: must be a commit of the hub (40 hexadecimal digits)" in said
    assert "got 'main' for owner/model, which is no file or folder here: fix the path, or take a commit" in said
    own.edit(lambda raw: raw["model"].update(revision="0" * 40))
    assert b'"commit": "' + b"0" * 40 in ran(own)["model"]


def test_a_hub_revision_is_the_commit_in_the_hubs_cache(own: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(own.root / "hub"))
    own.edit(lambda raw: raw["prompts"]["train_file"].update(path="owner/set", hub_file="train.txt", revision="v1"))
    before = ran(own)["prompts"]
    reference = own.root / "hub" / "datasets--owner--set" / "refs" / "v1"
    reference.parent.mkdir(parents=True)
    reference.write_text("1" * 40)
    after = ran(own)["prompts"]
    assert b"v1" in before and b"1" * 40 in after


def test_a_model_that_changed_meanwhile_is_refused(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(CHECKPOINT, workspace.root / "model")
    workspace.edit(lambda raw: raw["model"].update(checkpoint="model"))
    assert workspace.run("inputs") == 0
    before = workspace.files()
    appended("model/vae/config.json", " ")(workspace.root)
    told = "the files of model differ from those recorded in artifacts/inputs/model.json"
    for stage in ("encode_prompts@evaluation", "profile_l1", "train", "generate_base"):
        assert workspace.run_as_recorded(stage) == 3
        assert told in " ".join(capsys.readouterr().err.split()), stage
        assert workspace.files() == before


TRACKED = ("prompts.txt", "weights.bin", "worker.py", "own_scorer.py", "model", "policy", "images", "words.txt")


def test_a_missing_file_of_dvc_add_is_refused_whatever_names_it(
    own: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, value in {
        "policies": {"first": {"kind": "weights", "path": "policy"}, "second": {"kind": "images", "path": "images"}},
        "scorers.judge": ASKED | {"template": None, "template_file": "words.txt"},
    }.items():
        own.edit(put(path, value))
    (own.root / "words.txt").write_text("Is it {prompt}? Answer with a number from 0 to 10.")
    for folder in ("policy", "images"):
        (own.root / folder).mkdir()
        (own.root / folder / "a.json").write_text("{}")
    ran(own)
    for name in TRACKED:
        path, tracking = own.root / name, own.root / f"{name}.dvc"
        path.rename(own.root / "away")
        tracking.touch()
        assert own.run("inputs") == 3
        told = f"error: {name}: no such file, but {name}.dvc tracks it. In a checkout run `dvc checkout {name}.dvc`"
        assert told in capsys.readouterr().err
        (own.root / "away").rename(path)
        tracking.unlink()


def test_environment_secret_is_refused_and_not_printed(
    own: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`dvc exp run -S 'report.title=${oc.env:HF_TOKEN}'` writes it, by Hydra, before any code of this project runs."""
    monkeypatch.setenv("HF_TOKEN", "hf_hunter2hunter2")
    own.edit(put("scorers.own.options", {"headers": ["Bearer hf_hunter2hunter2"]}))
    assert own.run("inputs") == 2
    told = capsys.readouterr().err
    assert "scorers.own.options.headers.0: must not hold the value of the environment variable" in told
    assert "hunter2" not in told
    monkeypatch.setenv("HF_TOKEN", "short")
    own.edit(put("scorers.own.options", {"a": "short"}))
    ran(own)
