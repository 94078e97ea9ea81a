"""Adapters (LoRA, DoRA) of many programs: each key of a file is used, or the file is refused by the key's name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from diffusers.loaders.lora_base import LORA_ADAPTER_METADATA_KEY, LORA_WEIGHT_NAME_SAFE
from diffusers.models.normalization import AdaLayerNormContinuous
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from chunk_grpo.errors import DataError
from chunk_grpo.families.weights.adapter_settings import MERGE, check_settings, scale_of

WEIGHTS = str(LORA_WEIGHT_NAME_SAFE)
"""Name of diffusers for the file of an adapter."""

PEFT_WEIGHTS = str(SAFETENSORS_WEIGHTS_NAME)
"""Name of PEFT for it."""

PREFIX = "transformer."
"""Prefix of the weight names in diffusers' layout: the part of the pipeline."""

LayerNames: TypeAlias = Mapping[tuple[str, str], Mapping[str, str]]
"""Layers in the original code. By the names of a block there and in diffusers, with {} for its number: the name of each
layer there, and its names in diffusers, in the order of the rows."""

_PEFT_CONFIG = "adapter_config.json"
_OF_PEFT = "base_model.model."

_PREFIXES = (
    _OF_PEFT, "model.diffusion_model.", "diffusion_model.", "module.", PREFIX,
    "lora_unet_", "lora_transformer_", "lycoris_",
)  # fmt: skip
"""What programs write before the name of a layer."""

_TEXT = ("lora_te", "text_encoder", "text_model", "te.", "te1.", "te2.")
"""What they write before the name of a layer of a text encoder."""

_SUFFIXES = {
    ".lora_A.weight": "lora_A", ".lora_down.weight": "lora_A", ".lora.down.weight": "lora_A",
    ".lora_B.weight": "lora_B", ".lora_up.weight": "lora_B", ".lora.up.weight": "lora_B",
    ".down.weight": "lora_A", ".up.weight": "lora_B",
    ".lora_magnitude_vector": "lora_magnitude_vector", ".lora_magnitude_vector.weight": "lora_magnitude_vector",
    ".alpha": "alpha",
}  # fmt: skip
"""Parts of a layer by the end of the key; a longer one stands before one that it ends with."""

_KINDS = {
    "dora_scale": "DoRA as LyCORIS writes it", ".hada_": "LoHa", ".lokr_": "LoKr", ".oft_": "OFT", ".boft_": "BOFT",
    ".diff": "whole differences of weights", "lora_mid": "LoCon with a middle weight", ".bias": "LoRA with biases",
    "modules_to_save": "LoRA with whole layers", "lora_embedding": "LoRA of embeddings", ".vera_": "VeRA",
    ".ia3_": "IA3", ".magnitude": "DoRA as ai-toolkit writes it",
}  # fmt: skip
"""Kinds of adapters that are not read, by a part of the key."""

_OTHER = "Load the adapter on the checkpoint on which it was trained."


@dataclass(frozen=True)
class Adapter:
    """An adapter as read from a file."""

    weights: Mapping[str, Tensor]
    """Weights by the names of the network's layers and their parts, float32."""
    scales: Mapping[str, float]
    """Factor of B A by layer."""


@dataclass(frozen=True)
class Content:
    """Tensors and settings of a file, as they are there."""

    tensors: Mapping[str, Tensor]
    """Tensors by their keys."""
    settings: Mapping[str, Any] | None
    """Checked settings in PEFT's form; None: there are none."""
    where: str
    """File of the settings."""


@dataclass(frozen=True)
class _Place:
    """Where the rows of a layer of a file go."""

    layers: tuple[str, ...]
    """Names in the network."""
    is_swapped: bool = False
    """Whether the network has the two halves of the rows in the other order."""


def adapter_file(folder: Path) -> Path | None:
    """File of the adapter in a folder; None: there is none, or there are several."""
    for name in (WEIGHTS, PEFT_WEIGHTS):
        if (folder / name).exists():
            return folder / name
    found = [] if (folder / "config.json").exists() else sorted(folder.glob("*.safetensors"))
    return found[0] if len(found) == 1 else None


def read_adapter(path: Path, network: nn.Module, names: LayerNames) -> Adapter:
    """Read an adapter of a network.

    Args:
        path: File of the adapter. One that has PEFT's name needs PEFT's adapter_config.json beside it.
        network: Transformer without an adapter; only its layers are looked at.
        names: Names of the layers in the original code, as `DiffusersFamily.original_layers`.

    Raises:
        DataError: The file is damaged, holds something else than an adapter of kind LoRA or DoRA, or belongs to another
            network.
    """
    content = read_content(path)
    layers = _layers(path, content.tensors)
    known = _places(network, names)
    found = {layer: place for layer in layers if (place := _place(layer, known))}
    if lost := [layer for layer in layers if layer not in found]:
        raise DataError(
            f"{path}: not an adapter of this {type(network).__name__}, which has no layer {lost[0]} ({len(lost)} of "
            f"{len(layers)} layers). {_OTHER}"
        )
    weights: dict[str, Tensor] = {}
    scales: dict[str, float] = {}
    for layer, place in found.items():
        parts, here = dict(layers[layer]), f"{path}: {layer}"
        alpha = parts.pop("alpha", None)
        for name, own in _split(here, parts, place, network).items():
            if name in scales:
                raise DataError(f"{here} must be the only adapter of {name}, got another one in the same file")
            for part, weight in own.items():
                weights[f"{name}.{part}" if part == "lora_magnitude_vector" else f"{name}.{part}.weight"] = weight
            scales[name] = _scale(here, alpha, len(parts["lora_A"]), name, content)
    is_dora = any(name.endswith(".lora_magnitude_vector") for name in weights)
    if content.settings is not None and bool(content.settings.get("use_dora")) != is_dora:
        raise DataError(
            f"{content.where}: use_dora must tell whether there are keys lora_magnitude_vector "
            f"({str(is_dora).lower()}), got {content.settings.get('use_dora')}; save the adapter again"
        )
    return Adapter(weights, scales)


def read_content(path: Path) -> Content:
    """Read a file and its settings, which are in its metadata, or in PEFT's adapter_config.json beside it.

    Raises:
        DataError: File or settings are damaged, or a setting is of another kind of adapter.
    """
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(LORA_ADAPTER_METADATA_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{path}: cut off or damaged, or no file of safetensors ({error}); save or download the adapter again"
        ) from error
    config = path.with_name(_PEFT_CONFIG)
    is_renamed = config.exists() and any(name.startswith(_OF_PEFT) for name in tensors)
    is_of_peft = path.name == PEFT_WEIGHTS or is_renamed
    where = str(config if is_of_peft else path)
    try:
        if is_of_peft:
            text = config.read_text(encoding="utf-8")
        if text is None:
            return Content(tensors, None, where)
        settings = json.loads(text)
        if not isinstance(settings, dict):
            raise TypeError(f"an object is needed, got {type(settings).__name__}")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{where}: settings of the adapter cannot be read ({error}); save it again") from error
    if is_of_peft and "peft_type" not in settings:
        raise DataError(f"{where}: peft_type must be LORA, got none; save the adapter again")
    if not is_of_peft:  # the settings of the pipeline's other parts have their own prefixes
        settings = {name.removeprefix(PREFIX): value for name, value in settings.items()}
        settings = {name: value for name, value in settings.items() if "." not in name}
    check_settings(settings, where)
    return Content(tensors, settings or None, where)


def _scale(where: str, alpha: Tensor | None, rank: int, layer: str, content: Content) -> float:
    """Factor of B A by the tensor alpha and the settings; without both 1, as diffusers and ComfyUI have it."""
    told = None if content.settings is None else scale_of(content.settings, layer, rank, content.where)
    if alpha is None:
        return 1.0 if told is None else told
    if alpha.numel() != 1 or float(alpha) == 0:
        raise DataError(f"{where}: alpha must be one number other than 0, got {alpha.tolist()}")
    factor = float(alpha) / rank
    # alpha may be stored in half precision
    if told is not None and not math.isclose(told, factor, rel_tol=0.01):
        raise DataError(
            f"{where}: alpha / rank must be one number, got {factor:g} from the key alpha and {told:g} from the "
            "settings of the file; remove one of them"
        )
    return factor if told is None else told


def _layers(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Parts of each layer, by the layer's name in the file."""
    if text := [key for key in tensors if key.startswith(_TEXT)]:
        raise DataError(
            f"{path}: must hold weights of the transformer only, got {len(text)} keys of text encoders, such as "
            f"{text[0]}. Text encoders are not adapted; remove these keys, if the adapter is meant to do without them"
        )
    layers: dict[str, dict[str, Tensor]] = {}
    for key, weight in tensors.items():
        name = key.replace(".default.", ".")
        suffix = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), None)
        if suffix is None:
            kind = next((kind for mark, kind in _KINDS.items() if mark in key), "no known kind")
            raise DataError(
                f"{path}: must be LoRA, or DoRA in the layout of diffusers or PEFT, got the key {key} of {kind}. "
                f"{MERGE}"
            )
        part = _SUFFIXES[suffix]
        parts = layers.setdefault(name.removesuffix(suffix), {})
        if not weight.is_floating_point() and part != "alpha":
            raise DataError(f"{path}: {key} must hold floating-point numbers, got {weight.dtype}")
        if part in parts:
            raise DataError(f"{path}: {key} must be the only key of its weight, got another spelling too")
        parts[part] = weight.float()
        if not parts[part].isfinite().all():
            raise DataError(f"{path}: {key} must be finite, got NaN or infinity; use an earlier state of it")
    for layer, parts in layers.items():
        if not {"lora_A", "lora_B"} <= set(parts):
            raise DataError(f"{path}: {layer} must have both lora_A and lora_B, got only {', '.join(sorted(parts))}")
        down, up = parts["lora_A"], parts["lora_B"]
        if down.ndim < 2 or up.ndim < 2 or not len(down) == up.shape[1] > 0:
            raise DataError(
                f"{path}: {layer} must have matrices of one rank, got {list(down.shape)} and {list(up.shape)}"
            )
    if not layers:
        raise DataError(f"{path}: must hold weights of an adapter, got none")
    return layers


def _places(network: nn.Module, names: LayerNames) -> dict[str, _Place]:
    """Places of linear and convolutional layers by each of their names, with dots and with underscores."""
    modules = dict(network.named_modules())
    found = {n: _Place((n,)) for n, module in modules.items() if isinstance(module, nn.Linear | nn.Conv2d)}
    blocks = 1 + max((int(part) for name in modules for part in name.split(".") if part.isdigit()), default=0)
    for (original, own), layers in names.items():
        for number in range(blocks if "{}" in own else 1):
            for layer, targets in layers.items():
                there = tuple(f"{own}{target}".format(number) for target in targets.split())
                if all(name in modules for name in there):
                    # Original code has shift and scale in this order, diffusers' class the other way round.
                    parent = modules[there[0].rpartition(".")[0]]
                    place = _Place(there, isinstance(parent, AdaLayerNormContinuous))
                    found.setdefault(f"{original}{layer}".format(number), place)
    return {name.replace(".", "_"): place for name, place in found.items()} | found


def _place(layer: str, known: Mapping[str, _Place]) -> _Place | None:
    """Place of a layer of the file, whatever prefixes its name has."""
    while layer not in known:
        prefix = next((prefix for prefix in _PREFIXES if layer.startswith(prefix)), None)
        if prefix is None:
            return None
        layer = layer.removeprefix(prefix)
    return known[layer]


def _split(where: str, parts: Mapping[str, Tensor], place: _Place, network: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Parts of each layer of the network: rows of what the original code holds in one matrix, A in each."""
    shapes = [network.get_parameter(f"{name}.weight").shape for name in place.layers]
    sizes = [shape[0] for shape in shapes]
    rows = dict(parts)
    down = rows.pop("lora_A")
    if down.shape[1:] != shapes[0][1:]:
        raise DataError(f"{where}: lora_A must take {list(shapes[0][1:])} values, got {list(down.shape[1:])}. {_OTHER}")
    for part, weight in rows.items():
        if weight.ndim == 0 or len(weight) != sum(sizes):
            raise DataError(f"{where}: {part} must have {sum(sizes)} rows, got {list(weight.shape)}. {_OTHER}")
    if place.is_swapped:
        rows = {part: torch.cat(weight.chunk(2)[::-1]) for part, weight in rows.items()}
    split = {part: weight.split(sizes) for part, weight in rows.items()}
    return {
        name: {"lora_A": down, **{part: weights[i].contiguous() for part, weights in split.items()}}
        for i, name in enumerate(place.layers)
    }
