"""Look at a checkpoint before anything is loaded: is it there, whole, and of the right family?"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open

from chunk_grpo.errors import DataError

_WEIGHTLESS = ("scheduler", "tokenizer", "tokenizer_2")


def check_checkpoint(checkpoint: str, pipeline_class: str, components: Iterable[str]) -> None:
    """Check a local checkpoint folder; a hub id is left to the hub's own client.

    Args:
        checkpoint: Folder in the diffusers layout, or hub id ("owner/name").
        pipeline_class: What `_class_name` of model_index.json must be.
        components: Sub-folders that will be loaded.

    Raises:
        DataError: The folder is missing, of another family, or a weight file is missing or cut off.
    """
    folder = Path(checkpoint)
    if not folder.exists():
        if len(folder.parts) == 2 and not checkpoint.startswith((".", "/")):
            return  # may be a hub id
        raise DataError(
            f"model.checkpoint: the folder {checkpoint} does not exist. Give a folder in the diffusers layout or a hub "
            "id such as black-forest-labs/FLUX.1-dev; the toy checkpoint is assets/tiny-flux (git checkout assets)."
        )
    found = _class_name(folder)
    if found != pipeline_class:
        raise DataError(
            f"{folder / 'model_index.json'}: _class_name must be {pipeline_class} for this family, got {found}. "
            "Set model.family to the family of the checkpoint, or choose another checkpoint."
        )
    for component in components:
        _check_component(folder / component)


def _class_name(folder: Path) -> str:
    index = folder / "model_index.json"
    if not index.exists():
        raise DataError(
            f"{folder}: no model_index.json, so this is no checkpoint in the diffusers layout (or half of one)"
        )
    try:
        return str(json.loads(index.read_text(encoding="utf-8")).get("_class_name"))
    except (UnicodeDecodeError, json.JSONDecodeError, AttributeError) as error:
        raise DataError(f"{index}: not readable as JSON ({error}); download the checkpoint again") from error


def _check_component(folder: Path) -> None:
    again = "download the checkpoint again (an interrupted download leaves such gaps)"
    if not folder.is_dir():
        raise DataError(f"{folder}: this part of the checkpoint is missing; {again}")
    if folder.name in _WEIGHTLESS:
        return
    if not (folder / "config.json").exists():
        raise DataError(f"{folder / 'config.json'}: missing; {again}")
    weights = sorted(folder.glob("*.safetensors"))
    for index in folder.glob("*.safetensors.index.json"):
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        for missing in sorted(shards - {path.name for path in weights}):
            raise DataError(f"{folder / missing}: named in {index.name} but missing; {again}")
    if not weights:
        raise DataError(f"{folder}: no *.safetensors file; {again}")
    for path in weights:
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path}: cut off or damaged ({error}); {again}") from error
