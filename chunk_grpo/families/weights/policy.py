"""Saved policies: where they are, a network or a start of training with their weights, and forms of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from chunk_grpo.config.policies import PolicyFiles
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import Family, LoadOptions, TuningOptions
from chunk_grpo.families.weights.adapter_file import (
    PEFT_WEIGHTS,
    PREFIX,
    WEIGHTS,
    LayerNames,
    adapter_file,
    read_adapter,
    read_content,
)
from chunk_grpo.families.weights.adapter_settings import scale_of
from chunk_grpo.families.weights.checkpoint import TRAIN_AGAIN, check_like, load_like, network_with
from chunk_grpo.families.weights.hub import downloaded
from chunk_grpo.families.weights.lora import merge_lora, rescaled_state, with_lora


def local_policy(policy: PolicyFiles, key: str) -> Path:
    """File of the adapter, or folder of the transformer. Files of a hub id are downloaded.

    Raises:
        DataError: There is no such file, folder or hub id, or not one policy in it.
    """
    path = Path(policy.path)
    if not path.exists():
        path = _downloaded(policy, key)
    if policy.file is not None:
        path = path / policy.file
        if not path.is_file():
            raise DataError(f"{key}.file: {path} does not exist")
    return policy_in(path)


def policy_in(path: Path) -> Path:
    """The adapter's file, or the transformer's folder, in a folder that has it itself or in `transformer/`.

    Raises:
        DataError: There is none, or there are several.
    """
    for folder in (path / "transformer", path):
        if folder.is_dir() and (adapter_file(folder) or (folder / "config.json").exists()):
            return adapter_file(folder) or folder
    if path.is_file():
        return path
    raise DataError(
        f"{path}: must hold config.json of a transformer, or one adapter ({WEIGHTS} or {PEFT_WEIGHTS}), got "
        f"neither. If it was trained here, {TRAIN_AGAIN}"
    )


def saved_network(network: Any, path: Path, names: LayerNames, options: LoadOptions) -> Any:
    """A frozen network with the weights of a saved policy.

    An adapter shares the base weights of `network`; a transformer is loaded, and quantised, as it was.

    Raises:
        DataError: There is no policy, or one of another model.
    """
    found = policy_in(path)
    if found.is_file():
        return with_lora(network, found, names)
    return load_like(network, found, options)


def start_state(network: Any, path: Path, names: LayerNames, options: TuningOptions) -> dict[str, Tensor]:
    """Weights with which training of `network`, the base model's, starts; see `Family.start_state`."""
    found = _start(path, is_adapter=options.lora_rank is not None)
    if options.lora_rank is not None:
        return rescaled_state(found, names, network, options.lora_alpha / options.lora_rank)
    if found.is_dir():
        return dict(load_like(network, found, LoadOptions(str(found))).state_dict())
    state = {name: weight.detach().to("cpu", torch.float32, copy=True) for name, weight in network.state_dict().items()}
    whole = network_with(type(network), network.config, state)
    return dict(merge_lora(with_lora(whole, found, names)).state_dict())


def check_start(network: Any, path: Path, names: LayerNames, *, is_adapter: bool) -> None:
    """Check early the policy with which training of `network` starts: its settings, and an adapter's weights.

    Raises:
        ConfigError: It is a transformer where an adapter is trained.
        DataError: There is no policy, or one of another model.
    """
    found = _start(path, is_adapter=is_adapter)
    if found.is_file():
        read_adapter(found, network, names)
    else:
        check_like(network, found)


def _start(path: Path, *, is_adapter: bool) -> Path:
    found = policy_in(path)
    if is_adapter and found.is_dir():
        raise ConfigError(
            f"train.start_from: must be an adapter where train.lora trains one, got the transformer {found}; make "
            "it the base model (model.checkpoint), or train all weights (train.lora: null)"
        )
    return found


def comfyui_lora(folder: Path, out: Path) -> None:
    """Write an adapter as one file for ComfyUI, which multiplies B A by alpha / rank.

    ComfyUI takes alpha from a tensor of each layer and ignores the metadata of diffusers' files; without that tensor
    the factor would be 1 (comfy/weight_adapter/lora.py, 0323d87). It knows the layers of FLUX by diffusers' names.

    Args:
        folder: Folder of the adapter, as training wrote it.
        out: File to write.

    Raises:
        DataError: The folder holds no adapter, or a damaged one.
    """
    path = _trained_adapter(folder)
    content = read_content(path)
    if content.settings is None:
        raise DataError(f"{path}: must hold the settings of an adapter, got none; take the file of the training")
    alphas = {}
    for name, weight in sorted(content.tensors.items()):
        layer, rank = name.removesuffix(".lora_A.weight"), len(weight)
        if layer != name:
            scale = scale_of(content.settings, layer.removeprefix(PREFIX), rank, content.where)
            alphas[f"{layer}.alpha"] = torch.tensor(rank * scale)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file({**content.tensors, **alphas}, out)


def merged(base: Family, folder: Path, out: Path) -> None:
    """Write a transformer of diffusers that has the trained adapter in its weights.

    Args:
        base: Base model, with the part "transformer".
        folder: Folder of the adapter, as training wrote it.
        out: Folder to write.

    Raises:
        DataError: The folder holds no adapter, a damaged one, or one of another model.
    """
    network: Any = base.with_transformer(_trained_adapter(folder)).transformer
    merge_lora(network).save_pretrained(out)


def _trained_adapter(folder: Path) -> Path:
    path = folder / WEIGHTS
    if not path.exists():
        raise DataError(
            f"{folder}: must hold {WEIGHTS} of an adapter, got none. All weights were trained (train.lora: null); "
            "such a policy is exported as diffusers"
        )
    return path


def _downloaded(policy: PolicyFiles, key: str) -> Path:
    """Local folder of a hub id, with the configurations and the weights that may be the policy."""

    def files(*patterns: str, left_out: str | None = None) -> Path:
        return downloaded(f"{key}.path", policy.path, policy.revision, patterns, left_out=left_out)

    if policy.file is not None:
        return files(policy.file)
    if (files("*.json") / "transformer").is_dir():
        return files("transformer/*")
    return files("*.json", "*.safetensors", left_out="*/*")
