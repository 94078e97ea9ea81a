"""Base models: pipelines of diffusers, checked and loaded whole or in part, with exactly the weights of their files."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_type_hints

import diffusers
import torch
import transformers
from torch import nn

from chunk_grpo.config.models import BasePrecision
from chunk_grpo.errors import ConfigError, DataError, one_line
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.quantised import quantise
from chunk_grpo.families.swapping import swap
from chunk_grpo.families.weights.hub import not_downloaded
from chunk_grpo.families.weights.records import may_be_hub_id
from chunk_grpo.weights import NO_DIFFERENCES, KnownDifferences, load_weights, quiet, stored_weights

_LOGGER = logging.getLogger(__name__)

_LIBRARIES = {"diffusers": diffusers, "transformers": transformers}

_VOCABULARIES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("spiece.model",))
"""Alternative vocabulary files of a tokenizer. Without any, transformers silently builds an empty tokenizer."""

AGAIN = "download the checkpoint again (an interrupted download leaves such gaps)"

TRAIN_AGAIN = (
    "delete the folder of this variant below artifacts/train and run `dvc repro`: it is restored from the DVC cache "
    "or trained again"
)

_DISTILLED = re.compile(r"schnell|turbo|distill|klein(?!-base)", re.IGNORECASE)
"""Names of models that are distilled to few steps."""

_QUANTISED = "quantised weights are not read; give the checkpoint as it was before, in bfloat16"

_NOT_READ = {
    "quantization_config": _QUANTISED,
    "compression_config": _QUANTISED,
    "transformers_weights": "weights are read from model.safetensors alone; rename the file and remove this key",
}
"""Keys of config.json, and why they are refused."""

_PrecisionKey = Literal["base_precision", "text_precision"]
"""Field of `LoadOptions`, and key of `model`, with the precision of a network's quantised layers."""

_MAY_HAVE = {"T5EncoderModel": KnownDifferences(may_have=r"^lm_head\.weight$")}
"""By class: what a file of the whole T5 has, besides the decoder, which the class itself passes over."""


def load_pipeline(
    pipeline_class: Any, options: LoadOptions, components: Iterable[str], left_out: Mapping[str, None]
) -> Any:
    """Load a pipeline with frozen networks on `options.device`, each with exactly the weights of its files.

    Args:
        pipeline_class: Pipeline of diffusers.
        options: Checkpoint and settings.
        components: Components to load.
        left_out: Components not to load, each None.

    Raises:
        DataError: The checkpoint is missing, incomplete or of another family, or its weights are wrong.
        ConfigError: A folder has a revision.
    """
    checkpoint, names = options.checkpoint, list(components)
    if options.revision is not None and Path(checkpoint).is_dir():
        raise ConfigError(
            f"model.revision: must be null, since model.checkpoint {checkpoint} is a folder and only a hub "
            f"id has revisions, got {options.revision!r}"
        )
    if may_be_hub_id(checkpoint):
        checkpoint = _downloaded(pipeline_class, options, left_out)
    check_files(checkpoint, pipeline_class, names)
    folder = Path(checkpoint)
    networks = {
        name: _load_network(
            _network_class(pipeline_class, folder, name), folder / name, options, AGAIN, _precision_key(name)
        )
        for name in names
        if not _is_tokenizer(name)
    }
    try:
        with quiet():
            pipeline = pipeline_class.from_pretrained(folder, local_files_only=True, **networks, **left_out)
    except ImportError as error:  # such as torchvision, which processors of pictures ask for
        raise DataError(
            f"{folder}: {pipeline_class.__name__} needs a package that is not installed "
            f"({one_line(error)}). Install that package (`pip install NAME`)."
        ) from error
    except Exception as error:  # tokenizers and schedulers raise anything for wrong files
        raise DataError(
            f"{folder}: cannot be loaded as {pipeline_class.__name__} ({error}). Download the checkpoint again."
        ) from error
    pipeline.set_progress_bar_config(disable=True)
    for module in () if pipeline.vae is None else pipeline.vae.modules():
        if isinstance(module, nn.Conv2d):
            # On a CPU, convolutions are several times faster with channels last; on a GPU it does no harm.
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # its stub lacks it
    return pipeline


def check_files(checkpoint: str, pipeline_class: Any, components: Iterable[str]) -> None:
    """Check the files of a local checkpoint. A hub id is not checked; the hub's client does that.

    Args:
        checkpoint: Folder in the diffusers layout, or hub id ("owner/name").
        pipeline_class: Pipeline of diffusers, which model_index.json must name.
        components: Subfolders that will be loaded.

    Raises:
        DataError: The folder is missing, of another family, or a file is missing, cut off or not read.
    """
    if may_be_hub_id(checkpoint):
        return
    folder, wanted = Path(checkpoint), pipeline_class.__name__
    index = folder / "model_index.json"
    if not folder.exists():
        raise DataError(
            f"model.checkpoint: the folder {checkpoint} does not exist. Give a folder in the diffusers layout or a hub "
            "id such as black-forest-labs/FLUX.1-dev; the toys are assets/tiny-flux, assets/tiny-sd3 and "
            "assets/tiny-kontext (git checkout assets)."
        )
    if not index.exists():
        raise DataError(
            f"model.checkpoint: must be a folder in the diffusers layout, with model_index.json, got {folder}, which "
            f"{'is a single file' if folder.is_file() else 'has none'}. Download the whole repository of the "
            "model; from a single file diffusers writes such a folder by from_single_file and save_pretrained."
        )
    found = _read_object(index, AGAIN).get("_class_name")
    if found != wanted:
        raise DataError(
            f"{index}: _class_name must be {wanted} for this family, got {found}. "
            "Set model.family to the family of the checkpoint, or choose another checkpoint."
        )
    for component in components:
        _check_component(folder / component, AGAIN)


def takes_no_guidance(index: Mapping[str, Any], network: Mapping[str, Any]) -> bool:
    """Whether a model was distilled to few steps without guidance, by its files.

    By the mark of FLUX.2-klein in model_index.json, or by the missing input of FLUX.1-schnell's network: dev and Krea
    have it.
    """
    of_network = (network.get("_class_name"), network.get("guidance_embeds"))
    return bool(index.get("is_distilled")) or of_network == ("FluxTransformer2DModel", False)


def warn_of_distilled(checkpoint: str, network: Mapping[str, Any] | None = None) -> None:
    """Log a warning about a model that draws in few steps because it was distilled.

    By its files, or by its name where model_index.json does not say it, as with Z-Image-Turbo.

    Args:
        checkpoint: Checked folder, or hub id.
        network: Configuration of a hub id's transformer; None: it is not here.
    """
    folder, index = Path(checkpoint), {}
    if folder.is_dir():
        index = _read_object(folder / "model_index.json", AGAIN)
        network = _read_object(folder / "transformer" / "config.json", AGAIN)
    is_named = "is_distilled" not in index and _DISTILLED.search(folder.name)
    if not (takes_no_guidance(index, network or {}) or is_named):
        return
    _LOGGER.warning(
        "model.checkpoint: %s is distilled to few steps. Training takes it back towards many steps and blurs its "
        "images, most of all with a likelihood of noised images (docs/families.md); train its base model if there is "
        "one.",
        checkpoint,
    )


def load_like(network: Any, folder: Path, options: LoadOptions) -> Any:
    """Load a saved transformer that will replace `network`, frozen.

    Args:
        network: Transformer of the base model.
        folder: Folder written by `save_pretrained`.
        options: Types of the weights in memory, and their device.

    Raises:
        DataError: A file is missing, cut off or damaged, or has another configuration or other weights.
    """
    check_like(network, folder)
    return _load_network(type(network), folder, options, TRAIN_AGAIN, "base_precision")


def check_like(network: Any, folder: Path) -> None:
    """Check the files of a saved transformer that will replace `network`, from their headers.

    Args:
        network: Transformer of the base model. Keys of its configuration that the file lacks are not compared, because
            versions of diffusers have different keys.
        folder: Folder written by `save_pretrained`.

    Raises:
        DataError: A file is missing, cut off or damaged, or has another configuration.
    """
    _check_component(folder, TRAIN_AGAIN)
    path = folder / "config.json"
    found = _read_object(path, TRAIN_AGAIN)
    wanted = json.loads(json.dumps(dict(network.config)))  # the file has lists in place of tuples
    for name in sorted(found.keys() & wanted.keys()):
        if not name.startswith("_") and found[name] != wanted[name]:
            raise DataError(
                f"{path}: {name} must be {wanted[name]!r} as in model.checkpoint, got {found[name]!r}: this is a "
                f"policy of another model. If it was trained here, {TRAIN_AGAIN}"
            )


def network_with(network_class: Any, config: Any, state: Mapping[str, torch.Tensor]) -> Any:
    """A new network of a class of diffusers that holds the tensors of `state`, which are not copied."""
    with torch.device("meta"):
        network = network_class.from_config(config)
    network.load_state_dict(state, assign=True)
    return network


def _load_network(network_class: Any, folder: Path, options: LoadOptions, again: str, key: _PrecisionKey | None) -> Any:
    """A frozen network with the weights of a folder.

    `again` says what to do about wrong files; `key` names the precision of the network's quantised layers.
    """
    stored = stored_weights(folder, again)
    files = set(stored.values())
    place = files.pop() if len(files) == 1 else folder
    rule = again[0].upper() + again[1:]
    known = _MAY_HAVE.get(network_class.__name__, NO_DIFFERENCES)
    precision: BasePrecision | None = None if key is None else getattr(options, key)
    swaps = key == "base_precision" and options.block_swap > 0
    device = "cpu" if swaps or precision is not None else options.device
    network = load_weights(
        f"{place}: weights", network_class, folder, options.dtype, rule, device=device, known=known, files=stored
    )
    if precision is not None:
        quantise(network, precision, options.device, f"model.{key}")
    elif swaps:
        swap(network, options.block_swap, options.device)
    return network


def _precision_key(component: str) -> _PrecisionKey | None:
    if component.startswith("text_encoder"):
        return "text_precision"
    return "base_precision" if component == "transformer" else None


def _downloaded(pipeline_class: Any, options: LoadOptions, left_out: Mapping[str, None]) -> str:
    """Local folder with the needed files of a hub id."""
    try:
        return str(
            pipeline_class.download(options.checkpoint, revision=options.revision, use_safetensors=True, **left_out)
        )
    except Exception as error:  # of the hub's client, of the network below it, or of diffusers
        raise not_downloaded("model.checkpoint", options.checkpoint, options.revision, error) from error


def _network_class(pipeline_class: Any, folder: Path, name: str) -> Any:
    """Class of a component by model_index.json; DataError unless the pipeline takes it."""
    index = folder / "model_index.json"
    named = _read_object(index, AGAIN).get(name)
    if not (isinstance(named, list) and len(named) == 2 and all(isinstance(part, str) for part in named)):
        raise DataError(f"{index}: {name} must be [library, class], got {named!r}; {AGAIN}")
    library, class_name = named
    found = getattr(_LIBRARIES.get(library), class_name, None)
    wanted = get_type_hints(pipeline_class.__init__).get(name, nn.Module)
    if not (isinstance(found, type) and issubclass(found, nn.Module) and issubclass(found, wanted)):
        raise DataError(
            f"{index}: {name} must be a {getattr(wanted, '__name__', wanted)} of diffusers or transformers, got "
            f"{class_name} of {library}. Download the checkpoint again, or set model.family to its family."
        )
    return found


def _is_tokenizer(component: str) -> bool:
    """Whether a component is a tokenizer, perhaps with a processor of images around it; else it is a network."""
    return component.startswith(("tokenizer", "processor"))


def _check_component(folder: Path, again: str) -> None:
    if not folder.is_dir():
        raise DataError(f"{folder}: this part of the checkpoint is missing; {again}")
    configs = {path.name: _read_object(path, again) for path in sorted(folder.glob("*.json"))}
    is_tokenizer = _is_tokenizer(folder.name)
    needed = "tokenizer_config.json" if is_tokenizer else "config.json"
    if needed not in configs:
        raise DataError(f"{folder / needed}: missing; {again}")
    if is_tokenizer:
        if not any(all((folder / name).exists() for name in names) for names in _VOCABULARIES):
            wanted = ", or ".join(" with ".join(names) for names in _VOCABULARIES)
            raise DataError(f"{folder}: must hold {wanted}; {again}")
        return
    for name, meaning in _NOT_READ.items():
        if name in configs[needed]:
            raise DataError(
                f"{folder / needed}: {name} must be absent, got {str(configs[needed][name])[:200]}: {meaning}"
            )
    if "adapter_config.json" in configs:
        raise DataError(
            f"{folder / 'adapter_config.json'}: must be absent: an adapter is no part of a checkpoint. Merge it, or "
            "load it as a policy."
        )
    stored_weights(folder, again)


def _read_object(path: Path, again: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: not readable as JSON ({error}); {again}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: must be a JSON object, got {type(content).__name__}; {again}")
    return content
