"""Adapters for other programs: the same velocities by their own rules."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import FluxTransformer2DModel
from safetensors.torch import load_file
from torch import Tensor

from chunk_grpo.errors import DataError
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.weights.policy import comfyui_lora, merged
from tests.families.conftest import disturb, options, velocity

RANK = 3  # alpha is 6, so an alpha that is lost halves the change


@pytest.fixture
def adapted(tiny: Callable[[], FluxFamily], tmp_path: Path) -> FluxFamily:
    """A policy whose adapter does something, saved in tmp_path/adapter."""
    family = tiny()
    family.prepare_training(options(rank=RANK), seed=0)
    disturb(family)
    family.save_transformer(family.policy_state(), tmp_path / "adapter")
    return family


def by_rules_of_comfyui(base: dict[str, Tensor], file: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights W + alpha / rank B A; without a tensor alpha the factor is 1. Every tensor of the file must be used.

    comfy/weight_adapter/lora.py (0323d87) and comfy/lora.py: the names are `transformer.` and those of diffusers.
    """
    found, used = dict(base), set()
    for name in base:
        layer = f"transformer.{name.removesuffix('.weight')}"
        up, down, alpha = (f"{layer}.{part}" for part in ("lora_B.weight", "lora_A.weight", "alpha"))
        if name.endswith(".weight") and up in file:
            factor = file[alpha].item() / file[down].shape[0] if alpha in file else 1.0
            found[name] = base[name] + factor * (file[up] @ file[down])
            used |= {up, down, alpha}
    assert used == set(file)
    return found


@torch.no_grad()
def test_comfyui_draws_with_what_was_trained(
    adapted: FluxFamily, tiny: Callable[[], FluxFamily], tmp_path: Path
) -> None:
    comfyui_lora(tmp_path / "adapter", tmp_path / "policy.safetensors")
    base = tiny()
    before = velocity(base)
    weights = by_rules_of_comfyui(base.transformer.state_dict(), load_file(tmp_path / "policy.safetensors"))
    base.transformer.load_state_dict(weights)
    found, expected = velocity(base), velocity(adapted)
    assert torch.allclose(found, expected, atol=1e-5)
    assert float((expected - before).norm() / before.norm()) > 0.1


@torch.no_grad()
@pytest.mark.parametrize("load", ["tiny", "bf16"])
def test_a_merged_transformer_is_one_of_diffusers(
    load: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    loaded: Callable[[], FluxFamily] = request.getfixturevalue(load)
    adapted, base = loaded(), loaded()
    adapted.prepare_training(options(rank=RANK), seed=0)
    disturb(adapted)
    adapted.save_transformer(adapted.policy_state(), tmp_path / "adapter")
    before, names = velocity(base), set(base.transformer.state_dict())
    merged(base, tmp_path / "adapter", tmp_path / "merged")
    network = FluxTransformer2DModel.from_pretrained(
        tmp_path / "merged", torch_dtype=base.transformer.dtype, low_cpu_mem_usage=False
    )
    assert set(network.state_dict()) == names
    change, expected = velocity(base.using(network)) - before, velocity(adapted) - before
    tolerance = 1e-5 if load == "tiny" else 0.05  # bfloat16 has no room for a part of the change
    assert float((change - expected).norm() / expected.norm()) < tolerance


def test_a_policy_without_an_adapter_is_refused(tiny: Callable[[], FluxFamily], tmp_path: Path) -> None:
    family = tiny()
    family.save_transformer(family.policy_state(), tmp_path / "all")
    with pytest.raises(
        DataError, match=r"must hold pytorch_lora_weights.safetensors of an adapter, got none"
    ):
        comfyui_lora(tmp_path / "all", tmp_path / "policy.safetensors")
    with pytest.raises(DataError, match="All weights were trained"):
        merged(family, tmp_path / "all", tmp_path / "merged")


def test_a_damaged_adapter_is_named(adapted: FluxFamily, tmp_path: Path) -> None:
    del adapted
    (file,) = (tmp_path / "adapter").iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(DataError, match=rf"{file.name}: cut off or damaged"):
        comfyui_lora(tmp_path / "adapter", tmp_path / "policy.safetensors")
