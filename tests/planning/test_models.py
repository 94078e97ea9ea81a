"""Checkpoints of a plan: known hub ids, folders, and what is wrong with one."""

import json
import shutil
from pathlib import Path

import pytest

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.tracing import Traced, network_sizes, text_sizes, vae_weights
from chunk_grpo.planning.models import KNOWN, known_ids, read_checkpoint
from tests.planning.planned import TINY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def write(folder: Path, part: str, **values: object) -> None:
    path = folder / part / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **values}))


def test_files_of_hub_ids_say_where_they_are_from() -> None:
    assert "black-forest-labs/FLUX.1-dev" in known_ids()
    for file in KNOWN.glob("*.json"):
        content = json.loads(file.read_text("utf-8"))
        assert len(content["source"]) > 20 and {"transformer", "vae"} < set(content), file


def test_an_unknown_hub_id_names_the_next_step() -> None:
    with pytest.raises(ConfigError, match=r"there is no folder '\./modle'; give a folder"):
        read_checkpoint("flux", "./modle")
    with pytest.raises(ConfigError, match="hf download someone/model"):
        read_checkpoint("flux", "someone/model")


def test_a_folder_without_a_file_or_with_another_one(folder: Path) -> None:
    (folder / "vae" / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"vae/config\.json: not JSON"):
        read_checkpoint("flux", str(folder))
    (folder / "vae" / "config.json").unlink()
    with pytest.raises(DataError, match=r"vae/config\.json: cannot be read .*No such file"):
        read_checkpoint("flux", str(folder))


@pytest.mark.parametrize("checkpoint", [TINY, "black-forest-labs/FLUX.1-dev"])
def test_another_family(checkpoint: str) -> None:
    with pytest.raises(DataError, match=r"_class_name must be SD3Transformer2DModel for .* got Flux"):
        read_checkpoint("sd3", checkpoint)


def test_a_class_that_does_not_take_its_values(folder: Path) -> None:
    write(folder, "transformer", num_layers="two")
    with pytest.raises(DataError, match=r"transformer/config\.json: its class cannot be built \(TypeError"):
        network_sizes(Traced(read_checkpoint("flux", str(folder)), "float32", 32, 32, 8))


def test_a_class_that_does_not_exist(folder: Path) -> None:
    write(folder, "vae", _class_name="NoVae")
    write(folder, "text_encoder", architectures=["NoClip"])
    checkpoint = read_checkpoint("flux", str(folder))
    with pytest.raises(DataError, match=r"vae/config\.json: _class_name must be a class of diffusers, got"):
        vae_weights(checkpoint)
    with pytest.raises(DataError, match=r"text_encoder/config\.json: architectures must name .* got NoClip"):
        text_sizes(checkpoint)


def test_an_image_size_that_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="must be multiples of 16"):
        network_sizes(Traced(read_checkpoint("flux", "black-forest-labs/FLUX.1-dev"), "float32", 40, 32, 8))
