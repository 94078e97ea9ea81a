"""A trained policy is judged before it draws: whatever is damaged or of another model, the answer is a message."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from chunk_grpo.errors import DataError
from tests.families.conftest import TINY

Damage = Callable[[Path], object]
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY / "transformer", tmp_path / "transformer"))


def cut(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1000])


def with_config(text: str) -> Damage:
    return lambda folder: (folder / "config.json").write_text(text)


def with_value(name: str, value: object) -> Damage:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return change


def without_a_weight(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["proj_out.bias"]
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def with_one_more(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS) | {"another": torch.zeros(2)}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def with_another_shape(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS) | {"proj_out.bias": torch.zeros(2)}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def with_a_nan(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["proj_out.bias"][1] = float("nan")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(cut, "{}/" + WEIGHTS + ": cut off or damaged (", id="cut off"),
        pytest.param(
            lambda folder: (folder / WEIGHTS).unlink(),
            f"{{}}: must hold weights in model.safetensors or {WEIGHTS} or in files with its index, got no such file; ",
            id="missing",
        ),
        pytest.param(with_config(""), "{}/config.json: not readable as JSON (", id="empty config"),
        pytest.param(
            with_config('{"num_layers": '), "{}/config.json: not readable as JSON (", id="broken config"
        ),
        pytest.param(with_config("[]"), "{}/config.json: must be a JSON object, got list; ", id="a list"),
        pytest.param(
            with_value("num_layers", 5),
            "{}/config.json: num_layers must be 2 as in model.checkpoint, got 5; ",
            id="more layers",
        ),
        pytest.param(
            with_value("num_layers", 0),
            "{}/config.json: num_layers must be 2 as in model.checkpoint, got 0; ",
            id="fewer layers",
        ),
        pytest.param(
            without_a_weight,
            f"{{}}/{WEIGHTS}: weights do not fit the model: proj_out.bias is missing. ",
            id="a weight less",
        ),
        pytest.param(
            with_one_more,
            f"{{}}/{WEIGHTS}: weights do not fit the model: another is unknown to the model. ",
            id="a weight more",
        ),
        pytest.param(
            with_another_shape,
            f"{{}}/{WEIGHTS}: weights do not fit the model: proj_out.bias is [2] in place of [",
            id="another shape",
        ),
        pytest.param(
            with_a_nan,
            f"{{}}/{WEIGHTS}: weights must be finite, got NaN or infinity in proj_out.bias. ",
            id="a NaN",
        ),
        pytest.param(with_config("{}"), f"{{}}/{WEIGHTS}: weights do not fit the model: ", id="no values"),
    ],
)
def test_damaged_policy_is_reported(damage, message, tiny, trained):
    damage(trained)
    with pytest.raises(DataError) as caught:
        tiny().with_transformer(trained)
    assert str(caught.value).startswith(message.replace("{}", str(trained), 1))
    assert str(caught.value).endswith(
        "elete the folder of this variant below artifacts/train and run `dvc repro`: it is restored from the "
        "DVC cache or trained again"
    )
