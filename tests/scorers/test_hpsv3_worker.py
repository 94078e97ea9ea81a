"""The worker of the package hpsv3, with a stand-in for the package: what is told before anything is loaded."""

import json
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunk_grpo.config.scorers import InSubprocess, Weights
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.scorers import workers
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.running.placing import place_scorer
from tests.fake_python import python_with_folder
from tests.scorers.hpsv3_cases import scorer as in_process
from tests.scorers.samples import batch_of

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(*workers.__path__) / "hpsv3_original.py"
FILES = (
    "model/HPSv3.safetensors",
    "backbone/chat_template.json",
    "backbone/config.json",
    "backbone/preprocessor_config.json",
    "backbone/tokenizer.json",
    "backbone/tokenizer_config.json",
)
"""What the worker looks for."""

PACKAGE = '''
import json
from pathlib import Path

import torch
import yaml


class HPSv3RewardInferencer:
    """Scores the length of a prompt; leaves behind what it was made of."""

    def __init__(self, config_path, checkpoint_path, device):
        config = yaml.safe_load(Path(config_path).read_text())
        backbone = Path(config["model_name_or_path"])
        files = sorted(path.name for path in backbone.iterdir()) if backbone.is_dir() else None
        made_of = {"config": config, "files": files, "checkpoint": checkpoint_path, "device": device}
        Path(__file__).with_name("made_of.json").write_text(json.dumps(made_of))

    def reward(self, image_paths, prompts):
        return torch.tensor([[len(prompt), -0.5] for prompt in prompts])
'''


def make_package(folder: Path, version: str = "1.0.0") -> Path:
    """A package hpsv3, as pip would install it into a folder."""
    (folder / "hpsv3" / "config").mkdir(parents=True)
    (folder / "hpsv3" / "__init__.py").touch()
    (folder / "hpsv3" / "inference.py").write_text(PACKAGE)
    (folder / "hpsv3" / "config" / "HPSv3_7B.yaml").write_text("output_dim: 2\nbf16: true\n")
    about = folder / f"hpsv3-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hpsv3\nVersion: {version}\n")
    return folder


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with FILES; nothing is in them."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def placed() -> Iterator[Any]:
    """Makes scorers that are closed in the end."""
    made: list[Scorer] = []

    def place(files: Path, python: Path | str, **changes: Weights) -> Scorer:
        executor = InSubprocess(
            kind="subprocess",
            python=str(python),
            script=str(WORKER),
            device="cpu",
            start_seconds=60.0,
            timeout_seconds=60.0,
        )
        made.append(place_scorer("hpsv3", in_process(files).settings.model_copy(update=changes), executor))
        return made[-1]

    yield place
    for scorer in made:
        scorer.close()


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return python_with_folder(tmp_path / "python", make_package(tmp_path / "packages"))


def test_a_missing_package_is_told_with_the_command_that_installs_it(files: Path, placed: Any) -> None:
    assert find_spec("hpsv3") is None
    with pytest.raises(ConfigError, match=r"^executors\.hpsv3\.python: .* has no package hpsv3; `") as caught:
        placed(files, sys.executable).check()
    assert f"`{sys.executable} -m pip install hpsv3==1.0.0 'matplotlib>=3.8'" in str(caught.value)
    assert "transformers==4.45.2`" in str(caught.value)


@pytest.mark.parametrize("part", ["model", "backbone"])
@pytest.mark.parametrize("checkpoint", ["no/such-folder", "/no/such/folder", "somebody/HPSv3"])
def test_what_is_neither_a_folder_nor_the_packages_own_is_refused(
    part: str, checkpoint: str, files: Path, python: Path, placed: Any
) -> None:
    scorer = placed(files, python, **{part: Weights(checkpoint=checkpoint, revision=None)})
    with pytest.raises(DataError) as caught:
        scorer.check()
    assert str(caught.value).startswith(f"scorers.hpsv3.{part}.checkpoint: must be a folder with ")
    assert f"got '{checkpoint}'" in str(caught.value) and "`hf download " in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(name: str, files: Path, python: Path, placed: Any) -> None:
    part, _, file = name.partition("/")
    (files / name).unlink()
    with pytest.raises(
        DataError, match=rf"^scorers\.hpsv3\.{part}: no file {file} in {files / part}\. .*`hf download"
    ):
        placed(files, python).check()


def test_the_documented_downloads_have_every_file() -> None:
    lines = (ROOT / "docs" / "scorers.md").read_text(encoding="utf-8").splitlines()
    for hub_id, part in (("MizzenAI/HPSv3", "model"), ("Qwen/Qwen2-VL-7B-Instruct", "backbone")):
        (told,) = (line.split() for line in lines if f"hf download {hub_id} " in line)
        assert {name for name in FILES if name.startswith(part)} <= {f"{part}/{word}" for word in told}


def made_of(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "packages" / "hpsv3" / "made_of.json").read_text())
    return found


def test_a_backbone_without_weights_gets_a_file_of_them(
    files: Path, python: Path, placed: Any, tmp_path: Path
) -> None:
    before = sorted(path.name for path in (files / "backbone").iterdir())
    scores = placed(files, python).score(batch_of(np.zeros((2, 4, 4, 3), np.uint8), ["a", "ccc"]))
    assert scores.values.tolist() == [1, 3] and scores.details["log_sigma"].tolist() == [-0.5, -0.5]
    found = made_of(tmp_path)
    assert found["files"] == sorted([*before, "model.safetensors"])
    assert found["checkpoint"] == str(files / "model" / "HPSv3.safetensors") and found["device"] == "cpu"
    assert found["config"] | {"model_name_or_path": None} == {
        "output_dim": 2,
        "bf16": False,
        "torch_dtype": "float32",
        "model_name_or_path": None,
    }
    assert sorted(path.name for path in (files / "backbone").iterdir()) == before


def test_a_backbone_with_weights_is_read_where_it_is(
    files: Path, python: Path, placed: Any, tmp_path: Path
) -> None:
    (files / "backbone" / "model-00001-of-00005.safetensors").touch()
    placed(files, python).score(batch_of(np.zeros((1, 4, 4, 3), np.uint8), ["a"]))
    assert made_of(tmp_path)["config"]["model_name_or_path"] == str(files / "backbone")


def test_what_the_package_knows_it_downloads(files: Path, python: Path, placed: Any, tmp_path: Path) -> None:
    model = Weights(checkpoint="MizzenAI/HPSv3", revision=None)
    backbone = Weights(checkpoint="Qwen/Qwen2-VL-7B-Instruct", revision=None)
    scorer = placed(files, python, model=model, backbone=backbone)
    scorer.score(batch_of(np.zeros((1, 4, 4, 3), np.uint8), ["a"]))
    found = made_of(tmp_path)
    assert found["checkpoint"] is None
    assert found["config"]["model_name_or_path"] == "Qwen/Qwen2-VL-7B-Instruct"


def test_a_revision_of_what_it_downloads_is_refused(files: Path, python: Path, placed: Any) -> None:
    """The package takes the newest, and the identity would say another."""
    model = Weights(checkpoint="MizzenAI/HPSv3", revision="abc")
    with pytest.raises(ConfigError, match=r"^scorers\.hpsv3\.model\.revision: must be null, got 'abc'"):
        placed(files, python, model=model).check()


def test_another_version_of_the_package_is_another_scorer(
    files: Path, python: Path, placed: Any, tmp_path: Path
) -> None:
    newer = python_with_folder(tmp_path / "newer", make_package(tmp_path / "newer-packages", "1.0.1"))
    again = python_with_folder(tmp_path / "again", make_package(tmp_path / "again-packages"))
    first, second, third = (placed(files, each).spec_hash() for each in (python, newer, again))
    assert first != second
    assert first == third


def test_another_file_is_another_scorer_and_another_folder_is_not(
    files: Path, python: Path, placed: Any, tmp_path: Path
) -> None:
    hashes = [placed(files, python).spec_hash()]
    other = tmp_path / "elsewhere"
    for part in ("model", "backbone"):
        shutil.copytree(files / part, other / part)
    hashes.append(placed(other, python).spec_hash())
    for name in ("model/HPSv3.safetensors", "backbone/tokenizer.json"):
        (other / name).write_text("another")
        hashes.append(placed(other, python).spec_hash())
    assert hashes[0] == hashes[1] and len(set(hashes)) == 3
