"""Weights go to the device tensor by tensor, with the bits that a load on the CPU gives, and the same errors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from chunk_grpo.errors import DataError
from chunk_grpo.families.diffusers_family import DiffusersFamily
from tests.families.parity import load, names_with_slow_ones, save_checkpoints
from tests.pretended.device import DEVICE

TYPES = (torch.float32, torch.bfloat16)


def state(family: DiffusersFamily) -> dict[str, Tensor]:
    """All parameters and buffers, those that no file has too."""
    networks = {name: part for name, part in family._pipeline.components.items() if isinstance(part, nn.Module)}
    return {
        f"{part}.{name}": tensor.detach()
        for part, network in networks.items()
        for found in (network.named_parameters(), network.named_buffers())
        for name, tensor in found
    }


@pytest.mark.parametrize("name", names_with_slow_ones())
def test_every_bit_is_that_of_a_load_on_the_cpu(name: str, tmp_path: Path) -> None:
    """Stored in float32 and in bfloat16, wanted in both; of most families stored in float32 and wanted in bfloat16."""
    saved = save_checkpoints(name, tmp_path)
    for folder in saved.values() if name == "flux" else (saved["sharded"],):
        for dtype in TYPES if name == "flux" else TYPES[1:]:
            here, there = load(name, folder, dtype=dtype), load(name, folder, dtype=dtype, device=DEVICE)
            expected, found = state(here), state(there)
            assert list(found) == list(expected)
            for key, tensor in expected.items():
                assert found[key].device == DEVICE, key
                assert found[key].dtype == tensor.dtype, key
                assert torch.equal(found[key].cpu(), tensor), key


def test_no_network_is_whole_on_the_cpu_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cast there, it would take host memory in each process: whatever moves a network finds its weights moved."""
    folder, move, moved = save_checkpoints("flux", tmp_path)["sharded"], nn.Module.to, []

    def to(network: nn.Module, *args: Any, **kwargs: Any) -> Any:
        moved.extend(weight.device for weight in network.parameters())
        return move(network, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "to", to)
    load("flux", folder, dtype=torch.bfloat16, device=DEVICE)
    assert set(moved) == {DEVICE}


def broken(weights: dict[str, Tensor], name: str, way: str) -> dict[str, Tensor]:
    match way:
        case "missing":
            return {key: value for key, value in weights.items() if key != name}
        case "surplus":
            return weights | {"another.weight": torch.zeros(2)}
        case _:
            return weights | {name: torch.zeros(3, 5)}


@pytest.mark.parametrize("way", ["missing", "surplus", "misshapen"])
@pytest.mark.parametrize("part", ["text_encoder_2", "transformer"])
def test_wrong_weights_are_refused_as_on_the_cpu(part: str, way: str, tmp_path: Path) -> None:
    folder = save_checkpoints("flux", tmp_path)["bf16"]
    (file,) = (folder / part).glob("*.safetensors")
    weights = load_file(file)
    name = next(key for key, value in sorted(weights.items()) if key.endswith("weight") and value.ndim == 2)
    save_file(broken(weights, name, way), file)

    def message(where: object) -> str:
        with pytest.raises(DataError) as error:
            load("flux", folder, dtype=torch.float32, device=where)
        return str(error.value)

    assert message(DEVICE) == message("cpu")
