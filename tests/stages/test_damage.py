"""Damaged inputs and failures end a stage with a sentence and exit code 3; nothing is lost."""

import shutil
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file

from chunk_grpo.artifacts import read_table
from tests.conftest import VARIANT, Workspace


def refused(workspace: Workspace, stage: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a stage that ends with exit code 3."""
    before = workspace.files()
    capsys.readouterr()
    assert workspace.run(stage) == 3
    assert workspace.files() == before, "something that existed was lost or changed"
    errors = capsys.readouterr().err
    return errors[errors.find("error: ") + len("error: ") :].rstrip("\n")


def test_a_trained_policy_that_is_cut_off(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    (path, *_) = (workspace.artifacts / "train" / VARIANT).glob("seed-*/transformer/*.safetensors")
    path.write_bytes(path.read_bytes()[:-1000])
    name = path.relative_to(workspace.root).as_posix()
    assert refused(workspace, "generate", capsys).startswith(f"{name}: cut off or damaged (")


def test_a_model_that_gives_nan_at_the_profile(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    folder = workspace.artifacts / "embeddings" / "profile"
    index = read_table(folder / "index.parquet", "embeddings").to_pylist()
    record = [row for row in index if row["prompt_id"].startswith("train-")][1]
    path: Path = folder / "shard-00000.safetensors"
    tensors = load_file(path)
    tensors["prompt_embeds"][record["row"]] = torch.nan
    save_file(tensors, path)
    assert refused(workspace, "profile_l1", capsys) == (
        f"profile: under the SDE the latents of prompt {record['prompt']!r} are not finite after step 0 (from 0). "
        "Check model.checkpoint, or set another model.dtype, a smaller sampling.eta or another sampling.shift."
    )


@pytest.mark.parametrize("place", [".ckpt", "logs"])
def test_a_place_that_training_cannot_write_to_is_found_before_work(
    place: str, workspace: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file where a folder should be: no user, not even root, can write below it."""

    def load_family(*_: object) -> NoReturn:
        raise AssertionError("the model was to be loaded before this was found")

    monkeypatch.setattr("chunk_grpo.library.checkpoint.load_family", load_family)
    shutil.rmtree(workspace.root / place, ignore_errors=True)
    (workspace.root / place).write_text("mine")
    assert refused(workspace, "train", capsys) == f"{place}/{VARIANT}: cannot write: Not a directory."
