"""Checks of a checkpoint before loading: existence, completeness, family; and loading of a saved network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunk_grpo.errors import DataError
from chunk_grpo.weights import NO_DIFFERENCES, KnownDifferences, load_weights, stored_weights

if TYPE_CHECKING:
    import torch

_VOCABULARIES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("spiece.model",))
"""Alternative vocabulary files of a tokenizer. Without any, transformers silently builds an empty tokenizer."""

AGAIN = "download the checkpoint again (an interrupted download leaves such gaps)"

_NOT_READ = {
    "quantization_config": "quantised weights are not read; give the checkpoint as it was before, in bfloat16",
    "compression_config": "quantised weights are not read; give the checkpoint as it was before, in bfloat16",
    "transformers_weights": "weights are read from model.safetensors alone; rename the file and remove this key",
}
"""Keys of config.json, and why they are refused."""

_MAY_HAVE = {"T5EncoderModel": KnownDifferences(may_have=r"^lm_head\.weight$")}
"""By class: what a file of the whole T5 has, besides the decoder, which the class itself passes over."""

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
        if may_be_hub_id(checkpoint):
            return
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
        _check_component(folder / component, AGAIN)


def may_be_hub_id(checkpoint: str) -> bool:
    """Whether this is no folder here, but may be the name of a repository."""
    path = Path(checkpoint)
    return not path.exists() and len(path.parts) == 2 and not checkpoint.startswith((".", "/", "~"))


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


def load_part(
    network_class: Any,
    folder: Path,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    again: str = AGAIN,
) -> Any:
    """Load a network of a checkpoint, or a saved transformer, with exactly the weights of its files.

    Args:
        network_class: Class of transformers or diffusers.
        folder: Folder with config.json and the weights.
        dtype: Floating-point type of the weights in memory.
        device: Device of the network. On "meta", names and shapes are compared and no values are read.
        again: What to do about wrong files, for messages.

    Raises:
        DataError: The files cannot be loaded, or a weight is missing, unexpected, of another shape or not finite.
    """
    stored = stored_weights(folder, again)
    files = set(stored.values())
    place = files.pop() if len(files) == 1 else folder
    rule = again[0].upper() + again[1:]
    known = _MAY_HAVE.get(network_class.__name__, NO_DIFFERENCES)
    return load_weights(
        f"{place}: weights", network_class, folder, dtype, rule, device=device, known=known, files=stored
    )


def named_class(folder: Path, component: str) -> tuple[str, str]:
    """Library and name of a component's class by model_index.json.

    Raises:
        DataError: The file is missing or damaged, or has no such component.
    """
    index = folder / "model_index.json"
    found = _read_object(index, AGAIN).get(component)
    if not (isinstance(found, list) and len(found) == 2 and all(isinstance(part, str) for part in found)):
        raise DataError(f"{index}: {component} must be [library, class], got {found!r}; {AGAIN}")
    return found[0], found[1]


def _class_name(folder: Path) -> str:
    index = folder / "model_index.json"
    if not index.exists():
        raise DataError(
            f"{folder}: no model_index.json, so this is not a complete checkpoint in the diffusers layout"
        )
    return str(_read_object(index, AGAIN).get("_class_name"))


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
    config = _read_object(folder / "config.json", again)
    for name, meaning in _NOT_READ.items():
        if name in config:
            raise DataError(
                f"{folder / 'config.json'}: {name} must be absent, got {str(config[name])[:200]}: {meaning}"
            )
    if (folder / "adapter_config.json").exists():
        raise DataError(
            f"{folder / 'adapter_config.json'}: must be absent: an adapter is no part of a checkpoint. Merge it, or "
            "load it as a policy."
        )
    stored_weights(folder, again)


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
