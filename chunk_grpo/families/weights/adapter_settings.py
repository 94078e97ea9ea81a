"""Settings of an adapter in PEFT's form, by a closed list: any other must have its default value in PEFT."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from peft import LoraConfig
from peft.utils.other import get_pattern_key

from chunk_grpo.errors import DataError

MERGE = "Merge it into the transformer with the program that made it, and use that folder."

_FORMULA = (
    "peft_type", "init_lora_weights", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora",
)  # fmt: skip
"""Settings of PEFT that are read."""

_NO_EFFECT = (
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "lora_dropout", "eva_config", "runtime_config", "target_modules", "exclude_modules", "target_parameters",
    "layers_to_transform", "layers_pattern",
)  # fmt: skip
"""Settings that do not change a trained adapter: notes, training, and the choice of layers, which the file names."""

_STARTS = (True, False, "gaussian", "orthogonal", "eva", "mica")
"""Values of init_lora_weights that leave the base weights as they are; pissa, olora, corda, loftq, lora_ga do not."""

_DEFAULTS: dict[str, Any] = {
    field.name: field.default_factory() if callable(field.default_factory) else field.default
    for field in dataclasses.fields(LoraConfig)
}


def check_settings(settings: Mapping[str, Any], where: str) -> None:
    """DataError unless the settings in the file `where` are of kind LoRA, leave the base model alone, and are known."""
    kind = settings.get("peft_type", "LORA")
    if kind != "LORA":
        raise DataError(f"{where}: an adapter of kind {kind}; only adapters of kind LORA are read. {MERGE}")
    start = settings.get("init_lora_weights", True)
    if start not in _STARTS:
        raise DataError(
            f"{where}: init_lora_weights must be one of {', '.join(map(str, _STARTS))}, which leave the base model as "
            f"it is, got {start!r}. Save the adapter again with PEFT's path_initial_model_for_weight_conversion"
        )
    for name, value in settings.items():
        default = _DEFAULTS.get(name)
        if name not in _FORMULA + _NO_EFFECT and value and value != default:
            raise DataError(f"{where}: {name} must be {default!r} in an adapter, got {value!r}. {MERGE}")
    for name in ("use_rslora", "use_dora"):
        if not isinstance(settings.get(name) or False, bool):
            raise DataError(f"{where}: {name} must be true or false, got {settings[name]!r}")


def scale_of(settings: Mapping[str, Any], layer: str, rank: int, where: str) -> float:
    """Factor of B A by checked settings: alpha / rank, or alpha / sqrt(rank) of rank-stabilised LoRA.

    Raises:
        DataError: The settings are damaged, or tell another rank than the layer's weights have.
    """
    given = _DEFAULTS | {name: value for name, value in settings.items() if value is not None}
    try:
        told, alpha = (
            float(given[pattern].get(get_pattern_key(given[pattern].keys(), layer), given[name]))
            for pattern, name in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha"))
        )
    except (AttributeError, TypeError, ValueError, OverflowError, re.error) as error:
        raise DataError(f"{where}: rank and alpha of {layer} cannot be read ({error})") from error
    if told != rank:
        raise DataError(f"{where}: r must be the rank of {layer} in the file of weights, {rank}, got {told:g}")
    if not math.isfinite(alpha) or alpha == 0:
        raise DataError(f"{where}: lora_alpha of {layer} must be a finite number other than 0, got {alpha}")
    return alpha / (math.sqrt(rank) if given["use_rslora"] else rank)
