"""A trained policy is judged before it draws: whatever is damaged or of another model, the answer is a message."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from chunk_grpo.errors import DataError
from tests.families.conftest import TINY, edit_json

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


def with_layers(number: int) -> Damage:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        edit_json(path, {"num_layers": number})

    return change


def with_weights(edit: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def change(folder: Path) -> None:
        state = load_file(folder / WEIGHTS)
        edit(state)
        save_file(state, folder / WEIGHTS, metadata={"format": "pt"})

    return change


DAMAGE: dict[str, tuple[Damage, str]] = {
    "cut off": (cut, f"/{WEIGHTS}: cut off or damaged ("),
    "missing": (
        lambda folder: (folder / WEIGHTS).unlink(),
        f": must hold weights in model.safetensors or {WEIGHTS} or in files with its index, got no such file; ",
    ),
    "empty config": (with_config(""), "/config.json: not readable as JSON ("),
    "a list": (with_config("[]"), "/config.json: must be a JSON object, got list; "),
    "more layers": (with_layers(5), "/config.json: num_layers must be 2 as in model.checkpoint, got 5: "),
    "a weight less": (
        with_weights(lambda state: state.pop("proj_out.bias")),
        f"/{WEIGHTS}: weights do not fit the model: proj_out.bias is missing. ",
    ),
    "a NaN": (
        with_weights(lambda state: state["proj_out.bias"].fill_(float("nan"))),
        f"/{WEIGHTS}: weights must be finite, got NaN or infinity in proj_out.bias. ",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_policy_is_reported(kind, tiny, trained):
    damage, message = DAMAGE[kind]
    damage(trained)
    with pytest.raises(DataError) as caught:
        tiny().with_transformer(trained)
    assert str(caught.value).startswith(f"{trained}{message}")
    assert str(caught.value).endswith(
        "elete the folder of this variant below artifacts/train and run `dvc repro`: it is restored from the "
        "DVC cache or trained again"
    )
