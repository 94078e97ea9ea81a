"""Adapters (LoRA) in the layouts in which people publish them, as diffusers loads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusers.loaders.lora_base import LORA_WEIGHT_NAME_SAFE
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from chunk_grpo.errors import DataError

WEIGHTS = str(LORA_WEIGHT_NAME_SAFE)
"""Name of diffusers for the file of an adapter."""

PEFT_WEIGHTS = str(SAFETENSORS_WEIGHTS_NAME)
"""Name of PEFT for it."""

PREFIX = "transformer."
"""Prefix of the weight names in diffusers' layout: the part of the pipeline."""

_PEFT_CONFIG, _PEFT_PREFIX = "adapter_config.json", "base_model.model."
_PEFT_SETTINGS = ("r", "lora_alpha", "target_modules", "rank_pattern", "alpha_pattern", "use_rslora")
"""Settings of peft that diffusers gets."""
_PEFT_OTHERS = ("use_dora", "modules_to_save", "layers_to_transform", "fan_in_fan_out")
"""Settings of peft that must be off: they are of other kinds of adapters."""


@dataclass(frozen=True)
class Adapter:
    """An adapter as read from a file.

    Attributes:
        weights: Weights by the names of diffusers, with `PREFIX`, in the type of the file.
        settings: Arguments of diffusers' `load_lora_adapter` with rank and alpha: `metadata` or `network_alphas`.
    """

    weights: Mapping[str, Tensor]
    settings: Mapping[str, Any]


def adapter_file(folder: Path) -> Path | None:
    """File of the adapter in a folder; None: there is none, or there are several."""
    for name in (WEIGHTS, PEFT_WEIGHTS):
        if (folder / name).exists():
            return folder / name
    found = [] if (folder / "config.json").exists() else sorted(folder.glob("*.safetensors"))
    return found[0] if len(found) == 1 else None


def read_adapter(path: Path, pipeline_class: Any) -> Adapter:
    """Read an adapter in the layout of PEFT, or in one that diffusers' pipeline converts.

    Args:
        path: File of the adapter.
        pipeline_class: Pipeline of diffusers.

    Raises:
        DataError: The file is damaged, no adapter, or one of other parts than the transformer.
    """
    try:
        is_peft = path.name == PEFT_WEIGHTS
        found = _of_peft(path) if is_peft else _of_diffusers(path, pipeline_class)
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise DataError(
            f"{path}: cut off or damaged ({error}); save or download the adapter again"
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: {pipeline_class.__name__} of diffusers reads no adapter from it ({error})"
        ) from error
    others = sorted(name for name in found.weights if not name.startswith(PREFIX))
    if others or not found.weights:
        what = f"{len(others)} others, such as {others[0]}" if others else "none"
        raise DataError(f"{path}: must hold weights of the transformer only, got {what}")
    return found


def _of_peft(path: Path) -> Adapter:
    config = path.with_name(_PEFT_CONFIG)
    given = json.loads(config.read_text(encoding="utf-8"))
    for name in _PEFT_OTHERS:
        if given.get(name):
            raise DataError(
                f"{config}: {name} must be off in an adapter of this pipeline, got {given[name]!r}"
            )
    settings = {f"{PREFIX}{name}": given[name] for name in _PEFT_SETTINGS if given.get(name) is not None}
    weights = {
        f"{PREFIX}{name.removeprefix(_PEFT_PREFIX)}": weight for name, weight in load_file(path).items()
    }
    return Adapter(weights, {"metadata": settings})


def _of_diffusers(path: Path, pipeline_class: Any) -> Adapter:
    weights, *alphas, metadata = pipeline_class.lora_state_dict(
        str(path.parent),
        weight_name=path.name,
        use_safetensors=True,
        return_alphas=True,
        return_lora_metadata=True,
    )
    found = alphas[0] if alphas else None
    if metadata is not None or not found:
        return Adapter(weights, {"metadata": metadata})
    return Adapter(weights, {"network_alphas": {name: float(alpha) for name, alpha in found.items()}})
