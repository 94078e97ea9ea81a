"""Damaged and hostile adapters: each is refused with a sentence, or read with every key used."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxTransformer2DModel
from safetensors.torch import save_file
from torch import Tensor, nn

from chunk_grpo.errors import DataError
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.weights.adapter_file import PEFT_WEIGHTS, WEIGHTS, read_adapter

LAYERS = ("transformer_blocks.0.attn.to_q", "transformer_blocks.0.attn.to_k", "single_transformer_blocks.0.attn.to_v")
VALUES = (
    None, True, False, 0, -1, 3, 1e300, float("nan"), 10**400, "", "x", "(", [], ["to_q"], {}, {"to_q": "x"},
    {"(": 1}, {"to_q": None},
)  # fmt: skip
SETTINGS = (
    "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "init_lora_weights", "peft_type",
    "bias", "modules_to_save", "target_modules", "layer_replication", "new",
)  # fmt: skip
ENDS = (
    ".alpha",
    ".lora_down.weight",
    ".dora_scale",
    ".default.",
    "lora_unet_",
    "transformer." * 3000,
    "\n",
    "é",
    ".",
    "",
)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    with torch.device("meta"):
        return FluxTransformer2DModel(num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2)


def adapter() -> dict[str, Tensor]:
    weights = {}
    for layer in LAYERS:
        weights[f"transformer.{layer}.lora_A.weight"] = torch.ones(3, 32)
        weights[f"transformer.{layer}.lora_B.weight"] = torch.ones(32, 3)
        weights[f"transformer.{layer}.alpha"] = torch.tensor(6.0)
    return weights


def damaged(weights: dict[str, Tensor], dice: random.Random) -> dict[str, Tensor]:
    key = dice.choice(sorted(weights))
    weight = weights.pop(key)
    other = dice.randrange(7)
    if other == 0:
        weights[key[: dice.randrange(len(key) + 1)] + dice.choice(ENDS) + key[dice.randrange(len(key)) :]] = weight
    elif other == 1:
        weights[key] = torch.ones([dice.randrange(5) for _ in range(dice.randrange(4))])
    elif other == 2:
        weights[key] = weight.to(
            dice.choice([torch.int64, torch.bool, torch.float16, torch.complex64, torch.float8_e4m3fn])
        )
    elif other == 3:
        weights[key] = weight * dice.choice([float("nan"), float("inf"), 0.0])
    elif other == 4:
        weights[key], weights[key.replace("lora_A", "lora_down")] = weight, weight.clone()
    elif other == 5:
        weights[dice.choice(ENDS) + key] = weight
    return weights


@pytest.mark.parametrize("seed", range(100))
def test_a_damaged_adapter(seed: int, network: nn.Module, tmp_path: Path) -> None:
    """Nothing but DataError; what is read has three layers and no more, so no key was left out."""
    dice = random.Random(seed)
    settings: dict[str, Any] = {"peft_type": "LORA", "r": 3, "lora_alpha": 6}
    weights, of_peft = adapter(), dice.random() < 0.5
    for _ in range(dice.randrange(3)):
        weights = damaged(weights, dice)
    for _ in range(dice.randrange(3)):
        settings[dice.choice(SETTINGS)] = dice.choice(VALUES)
    text = json.dumps(settings if of_peft else {f"transformer.{name}": value for name, value in settings.items()})
    if dice.random() < 0.2:
        text = text[: dice.randrange(len(text))]
    path = tmp_path / (PEFT_WEIGHTS if of_peft else WEIGHTS)
    save_file(weights, path, None if of_peft else {"lora_adapter_metadata": text})
    (tmp_path / "adapter_config.json").write_text(text if of_peft else "{}")
    if dice.random() < 0.2:
        content = bytearray(path.read_bytes())
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        path.write_bytes(content[: dice.randrange(len(content))] if dice.random() < 0.5 else content)
    try:
        found = read_adapter(path, network, FluxFamily.original_layers)
    except DataError as error:
        assert str(tmp_path) in str(error)
        return
    pairs = [key for key in weights if key.endswith((".lora_A.weight", ".lora_down.weight"))]
    assert len(found.scales) == len(pairs)
    assert len(found.weights) == 2 * len(pairs)
