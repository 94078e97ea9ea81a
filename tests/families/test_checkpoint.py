"""A checkpoint is judged before it is loaded: whatever file is missing or cut off, the answer is a message."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.weights.checkpoint import check_files
from tests.families.conftest import TINY, edit_json, refused

FILES = sorted(path.relative_to(TINY).as_posix() for path in TINY.rglob("*") if path.is_file())


def test_a_folder_has_no_revision(copy):
    """diffusers would pass over it, and another model than the named one would be trained."""
    options = LoadOptions(str(copy), height=32, width=32, max_sequence_length=8, revision="main")
    with pytest.raises(ConfigError) as caught:
        FluxFamily.load(options)
    assert str(caught.value) == (
        f"model.revision: must be null, since model.checkpoint {copy} is a folder and only a hub id has revisions, got "
        "'main'"
    )


def test_loading_draws_no_bars(capfd):
    FluxFamily.load(LoadOptions(str(TINY), height=32, width=32, max_sequence_length=8))
    assert "Loading" not in capfd.readouterr().err


@pytest.mark.slow
def test_importing_a_family_says_nothing():
    code = "from chunk_grpo.families.registry import family_class; family_class('flux')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_missing(file, copy):
    (copy / file).unlink()
    message = refused(copy)
    assert str(copy / file) in message or str((copy / file).parent) in message


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_cut_off(file, copy):
    content = (copy / file).read_bytes()
    for share in (0.6, 0.0):
        (copy / file).write_bytes(content[: int(share * len(content))])
        assert str(copy / file) in refused(copy)


def test_a_shard_that_is_missing(sharded_checkpoint, tmp_path):
    copy = Path(shutil.copytree(sharded_checkpoint, tmp_path / "model"))
    shard = sorted((copy / "transformer").glob("*.safetensors"))[1]
    shard.unlink()
    assert refused(copy).startswith(f"{shard}: named in diffusion_pytorch_model.safetensors.index.json but missing;")
    index = copy / "transformer" / "diffusion_pytorch_model.safetensors.index.json"
    for broken in ("{", "[]", json.dumps({"weight_map": 3})):
        index.write_text(broken)
        assert refused(copy).startswith(f"{index}: ")


def test_a_folder_that_is_not_there(tmp_path):
    for folder in (str(tmp_path / "none"), "./owner/name"):
        assert refused(folder).startswith(f"model.checkpoint: the folder {folder} does not exist.")


def test_a_folder_that_is_no_checkpoint(tmp_path):
    assert refused(tmp_path).startswith("model.checkpoint: must be a folder in the diffusers layout, with model_index.")
    (tmp_path / "model.safetensors").touch()
    said = refused(str(tmp_path / "model.safetensors"))
    assert "got " + str(tmp_path / "model.safetensors") + ", which is a single file. Download the whole" in said


def test_weights_that_git_lfs_did_not_fetch(copy):
    path = next((copy / "transformer").glob("*.safetensors"))
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert refused(copy) == (
        f"{path}: this is a pointer of Git LFS, not the file itself: run `git lfs pull` in its repository."
    )


def test_a_checkpoint_of_another_family(copy):
    index = copy / "model_index.json"
    edit_json(index, {"_class_name": "StableDiffusion3Pipeline"})
    assert refused(copy) == (
        f"{index}: _class_name must be FluxPipeline for this family, got StableDiffusion3Pipeline. "
        "Set model.family to the family of the checkpoint, or choose another checkpoint."
    )


@pytest.mark.parametrize(
    ("tokenizer", "files"), [("tokenizer", ("vocab.json", "merges.txt")), ("tokenizer_2", ("spiece.model",))]
)
def test_a_tokenizer_in_its_older_files_is_whole(tokenizer, files, copy):
    """FLUX.1-dev has such files."""
    (copy / tokenizer / "tokenizer.json").unlink()
    assert refused(copy).startswith(f"{copy / tokenizer}: must hold tokenizer.json, or vocab.json with merges.txt")
    for name in files:
        (copy / tokenizer / name).write_text("{}")
    check_files(str(copy), FluxFamily.pipeline_class, (tokenizer,))


def test_parts_that_are_not_used_are_not_asked_for(copy):
    shutil.rmtree(copy / "text_encoder_2")
    options = LoadOptions(str(copy), height=32, width=32)
    assert FluxFamily.load(options, ("transformer",)).latent_shape[0] == 16


def test_a_hub_id_without_a_network_is_read_from_the_hubs_cache(tmp_path, monkeypatch):
    commit, cached = "a" * 40, tmp_path / "models--somebody--tiny"
    shutil.copytree(TINY, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    options = LoadOptions("somebody/tiny", commit, height=32, width=32, max_sequence_length=8)
    assert FluxFamily.load(options).latent_shape == (16, 32)
    with pytest.raises(DataError) as caught:
        FluxFamily.load(replace(options, revision="b" * 40))
    wanted = "somebody/tiny is no file or folder here, and cannot be downloaded from the hub"
    assert str(caught.value).startswith(f"model.checkpoint: {wanted} (revision {'b' * 40}): ")
    assert "HF_HUB_OFFLINE is set, so only what is in its cache is read" in str(caught.value)


def test_a_package_that_a_processor_asks_for_is_to_be_installed(monkeypatch):
    def asking(*args, **options):
        raise ImportError("\nPixtralImageProcessor requires the Torchvision library but it was not found.\n")

    monkeypatch.setattr(FluxFamily.pipeline_class, "from_pretrained", asking)
    asked = "PixtralImageProcessor requires the Torchvision library but it was not found"
    with pytest.raises(DataError, match=rf"not installed \({asked}\)\. Install that package \(`pip install NAME`\)"):
        FluxFamily.load(LoadOptions(str(TINY), height=32, width=32, max_sequence_length=8), ("text",))
