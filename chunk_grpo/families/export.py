"""Trained adapters for other programs, and merged into the base model's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers.loaders.lora_base import LORA_ADAPTER_METADATA_KEY
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from chunk_grpo.errors import DataError
from chunk_grpo.families.adapter_files import PREFIX, WEIGHTS
from chunk_grpo.families.adapter_settings import check_settings, scale_of
from chunk_grpo.families.base import Family


def comfyui_lora(folder: Path, out: Path) -> None:
    """Write an adapter as one file for ComfyUI, which multiplies B A by alpha / rank.

    ComfyUI takes alpha from a tensor of each layer and ignores the metadata of diffusers' files; without that tensor
    the factor would be 1 (comfy/weight_adapter/lora.py, 0323d87). It knows the layers of FLUX by diffusers' names.

    Args:
        folder: Folder of the adapter.
        out: File to write.

    Raises:
        DataError: The folder holds no adapter, or a damaged one.
    """
    weights, settings = _adapter(folder)
    ranks = {
        name.removesuffix(".lora_A.weight"): len(weight)
        for name, weight in sorted(weights.items())
        if name.endswith(".lora_A.weight")
    }
    where = str(folder / WEIGHTS)
    alphas = {
        f"{layer}.alpha": torch.tensor(rank * scale_of(settings, layer.removeprefix(PREFIX), rank, where))
        for layer, rank in ranks.items()
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file({**weights, **alphas}, out)


def merged(base: Family, folder: Path, out: Path) -> None:
    """Write a transformer of diffusers that has the trained adapter in its weights.

    Args:
        base: Base model, with the part "transformer".
        folder: Folder of the adapter.
        out: Folder to write.

    Raises:
        DataError: The folder holds no adapter, a damaged one, or one of another model.
    """
    _adapter(folder)
    network: Any = base.with_transformer(folder).transformer
    network.fuse_lora()
    network.unload_lora()
    network.save_pretrained(out)


def _adapter(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and settings of an adapter."""
    path = folder / WEIGHTS
    if not path.exists():
        raise DataError(
            f"{folder}: must hold {WEIGHTS} of an adapter, got none. All weights were trained (train.lora: null); "
            "such a policy is exported as diffusers"
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(json.loads(file.metadata()[LORA_ADAPTER_METADATA_KEY]))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged, or without the settings of an adapter ({error})") from error
    settings = {name.removeprefix(PREFIX): value for name, value in metadata.items()}
    check_settings(settings, str(path))
    return weights, settings
