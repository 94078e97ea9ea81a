"""Saved policies: where their weights are, and a network or the start of a training with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chunk_grpo.config.policies import PolicyFiles
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.adapter_files import PEFT_WEIGHTS, WEIGHTS, adapter_file
from chunk_grpo.families.adapter_layers import LayerNames
from chunk_grpo.families.base import TuningOptions
from chunk_grpo.families.checkpoint import TRAIN_AGAIN, check_trained, load_part
from chunk_grpo.families.lora import rescaled_state, with_lora


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
    """File of the adapter, or folder of the transformer.

    Args:
        path: File of an adapter, or folder with `transformer/`, a transformer or an adapter.

    Raises:
        DataError: There is none, or there are several.
    """
    for folder in (path / "transformer", path):
        if folder.is_dir() and (adapter_file(folder) or (folder / "config.json").exists()):
            return adapter_file(folder) or folder
    if path.is_dir() or not path.exists():
        raise DataError(
            f"{path}: must hold config.json of a transformer, or one adapter ({WEIGHTS} or {PEFT_WEIGHTS}), got "
            f"neither. If it was trained here, {TRAIN_AGAIN}"
        )
    return path


def saved_network(
    network: Any, path: Path, names: LayerNames, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Any:
    """A frozen network with the weights of a saved policy. An adapter shares the base weights of `network`.

    Args:
        network: Transformer of the base model.
        path: As in `policy_in`.
        names: As in `read_adapter`.
        dtype: Floating-point type of a transformer's weights.
        device: Device of a transformer.

    Raises:
        DataError: There is no policy, or one of another model.
    """
    found = policy_in(path)
    if found.is_file():
        return with_lora(network, found, names)
    check_trained(found, network.config)
    return load_part(type(network), found, dtype, device, TRAIN_AGAIN)


def start_state(network: Any, path: Path, names: LayerNames, options: TuningOptions) -> dict[str, Tensor]:
    """Weights with which training starts, by the names of the trained ones, float32 in the CPU's memory.

    Args:
        network: Transformer of the base model, not yet prepared for training.
        path: As in `policy_in`.
        names: As in `read_adapter`.
        options: Options of the training.

    Raises:
        ConfigError: An adapter is trained, but the policy is a transformer.
        DataError: There is no policy, or one of another model.
    """
    found = policy_in(path)
    if options.lora_rank is not None:
        if found.is_dir():
            raise ConfigError(
                f"train.start_from: must be an adapter where train.lora trains one, got the transformer {found}; make "
                "it the base model (model.checkpoint), or train all weights (train.lora: null)"
            )
        return rescaled_state(found, names, network, options.lora_alpha / options.lora_rank)
    if found.is_dir():
        return dict(saved_network(network, found, names, torch.float32).state_dict())
    with torch.device("meta"):
        whole = type(network).from_config(network.config)
    state = {
        name: weight.detach().to("cpu", torch.float32, copy=True)
        for name, weight in network.state_dict().items()
    }
    whole.load_state_dict(state, assign=True)
    merged = with_lora(whole, found, names)
    merged.fuse_lora()
    merged.unload_lora()
    return dict(merged.state_dict())


def _downloaded(policy: PolicyFiles, key: str) -> Path:
    """Local folder of a hub id, with the configurations and the weights that may be the policy."""
    from huggingface_hub import snapshot_download  # here: only inputs of the hub need the package

    def files(*patterns: str, top_only: bool = False) -> Path:
        left_out = ["*/*"] if top_only else []
        return Path(
            snapshot_download(
                policy.path, revision=policy.revision, allow_patterns=list(patterns), ignore_patterns=left_out
            )
        )

    try:
        if policy.file is not None:
            return files(policy.file)
        folder = files("*.json")
        if (folder / "transformer").is_dir():
            return files("transformer/*")
        return files("*.json", "*.safetensors", top_only=True)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{key}.path: {policy.path} is no file or folder here, and cannot be downloaded from the hub ({error}). "
            "A hub id needs the network, and for some policies `hf auth login`."
        ) from error
