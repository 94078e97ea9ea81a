"""Checks of a checkpoint before loading: existence, completeness, family; and loading of a saved network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from chunk_grpo.errors import DataError

if TYPE_CHECKING:
    import torch

_VOCABULARIES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("spiece.model",))
"""Alternative vocabulary files of a tokenizer. Without any, transformers silently builds an empty tokenizer."""

_AGAIN = "download the checkpoint again (an interrupted download leaves such gaps)"

TRAIN_AGAIN = (
    "delete the folder of this variant below artifacts/train and run `dvc repro`: it is restored from the DVC cache "
    "or trained again"
)


def check_checkpoint(checkpoint: str, pipeline_class: str, components: Iterable[str]) -> None:
    """Check a local checkpoint folder. A hub id is not checked; the hub's client does that.

    Args:
        checkpoint: Folder in the diffusers layout, or hub id ("owner/name").
        pipeline_class: Required `_class_name` in model_index.json.
        components: Subfolders that will be loaded.

    Raises:
        DataError: The folder is missing, of another family, or a weight file is missing or cut off.
    """
    folder = Path(checkpoint)
    if not folder.exists():
        if len(folder.parts) == 2 and not checkpoint.startswith((".", "/")):
            return  # may be a hub id
        raise DataError(
            f"model.checkpoint: the folder {checkpoint} does not exist. Give a folder in the diffusers layout or a hub "
            "id such as black-forest-labs/FLUX.1-dev; the toys are assets/tiny-flux and assets/tiny-sd3 (git checkout "
            "assets)."
        )
    found = _class_name(folder)
    if found != pipeline_class:
        raise DataError(
            f"{folder / 'model_index.json'}: _class_name must be {pipeline_class} for this family, got {found}. "
            "Set model.family to the family of the checkpoint, or choose another checkpoint."
        )
    for component in components:
        _check_component(folder / component, _AGAIN)


def check_trained(folder: Path, config: Mapping[str, object]) -> None:
    """Check a saved transformer that will replace another one.

    Args:
        folder: Folder written by `save_pretrained`.
        config: Configuration of the replaced transformer. Keys missing in the file are not compared, because versions
            of diffusers have different keys.

    Raises:
        DataError: A file is missing, cut off or damaged, or the configuration differs.
    """
    _check_component(folder, TRAIN_AGAIN)
    path = folder / "config.json"
    found = _read_object(path, TRAIN_AGAIN)
    wanted = json.loads(json.dumps(dict(config)))  # the file has lists in place of tuples
    for name in sorted(found.keys() & wanted.keys()):
        if not name.startswith("_") and found[name] != wanted[name]:
            raise DataError(
                f"{path}: {name} must be {wanted[name]!r} as in model.checkpoint, got {found[name]!r}; {TRAIN_AGAIN}"
            )


def load_network(network_class: Any, folder: Path, dtype: torch.dtype) -> Any:
    """Load a saved transformer; require exactly the weights of its configuration.

    diffusers alone leaves missing weights uninitialised and ignores surplus ones.

    Raises:
        DataError: The files cannot be loaded, or weights are missing or unexpected.
    """
    try:
        network, found = network_class.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: cannot be loaded ({error}); {TRAIN_AGAIN}") from error
    for which in ("missing", "unexpected"):
        if names := sorted(found[f"{which}_keys"]):
            raise DataError(
                f"{folder}: must hold each weight of its config.json and no other, got {len(names)} {which}, such as "
                f"{names[0]}; {TRAIN_AGAIN}"
            )
    return network


def _class_name(folder: Path) -> str:
    index = folder / "model_index.json"
    if not index.exists():
        raise DataError(
            f"{folder}: no model_index.json, so this is not a complete checkpoint in the diffusers layout"
        )
    return str(_read_object(index, _AGAIN).get("_class_name"))


def _check_component(folder: Path, again: str) -> None:
    if not folder.is_dir():
        raise DataError(f"{folder}: this part of the checkpoint is missing; {again}")
    for path in sorted(folder.glob("*.json")):
        _read_object(path, again)
    if folder.name.startswith("tokenizer"):
        _require(folder / "tokenizer_config.json", again)
        if not any(all((folder / name).exists() for name in names) for names in _VOCABULARIES):
            wanted = ", or ".join(" with ".join(names) for names in _VOCABULARIES)
            raise DataError(f"{folder}: must hold {wanted}; {again}")
        return
    _require(folder / "config.json", again)
    weights = sorted(folder.glob("*.safetensors"))
    for index in sorted(folder.glob("*.safetensors.index.json")):
        shards = _read_object(index, again).get("weight_map")
        if not isinstance(shards, dict):
            raise DataError(f"{index}: weight_map must name the file of each weight, got {shards!r}; {again}")
        for missing in sorted(set(shards.values()) - {path.name for path in weights}):
            raise DataError(f"{folder / missing}: named in {index.name} but missing; {again}")
    if not weights:
        raise DataError(f"{folder}: no *.safetensors file; {again}")
    for path in weights:
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path}: cut off or damaged ({error}); {again}") from error


def _require(path: Path, again: str) -> None:
    if not path.exists():
        raise DataError(f"{path}: missing; {again}")


def _read_object(path: Path, again: str) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: not readable as JSON ({error}); {again}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: must be a JSON object, got {type(content).__name__}; {again}")
    return content
