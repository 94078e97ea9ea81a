"""Pipelines of diffusers, loaded whole or in part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import diffusers
import torch
import transformers
from torch import nn

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.checkpoint import check_checkpoint, load_part, named_class

_LIBRARIES = {"diffusers": diffusers, "transformers": transformers}


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
    if options.revision is not None and Path(options.checkpoint).is_dir():
        raise ConfigError(
            f"model.revision: must be null, since model.checkpoint {options.checkpoint} is a folder and only a hub "
            f"id has revisions, got {options.revision!r}"
        )
    names = list(components)
    check_checkpoint(options.checkpoint, pipeline_class.__name__, names)
    folder = _folder(pipeline_class, options, left_out)
    check_checkpoint(str(folder), pipeline_class.__name__, names)
    networks = {
        name: load_part(
            _network_class(pipeline_class, folder, name), folder / name, options.dtype, options.device
        )
        for name in names
        if not name.startswith("tokenizer")
    }
    try:
        pipeline = pipeline_class.from_pretrained(folder, local_files_only=True, **networks, **left_out)
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


def _folder(pipeline_class: Any, options: LoadOptions, left_out: Mapping[str, None]) -> Path:
    """Folder of the checkpoint. The needed files of a hub id are downloaded."""
    folder = Path(options.checkpoint)
    if folder.is_dir():
        return folder
    try:
        return Path(
            pipeline_class.download(
                options.checkpoint, revision=options.revision, use_safetensors=True, **left_out
            )
        )
    except Exception as error:  # of the hub's client, of the network below it, or of diffusers
        raise DataError(
            f"model.checkpoint: cannot download {options.checkpoint} (revision {options.revision}): {error}. "
            "A hub id needs the network, and often an accepted licence and `hf auth login`."
        ) from error


def _network_class(pipeline_class: Any, folder: Path, name: str) -> Any:
    """Class of a component by model_index.json; DataError unless the pipeline takes it."""
    library, class_name = named_class(folder, name)
    found = getattr(_LIBRARIES.get(library), class_name, None)
    wanted = get_type_hints(pipeline_class.__init__).get(name, nn.Module)
    if not (isinstance(found, type) and issubclass(found, nn.Module) and issubclass(found, wanted)):
        raise DataError(
            f"{folder / 'model_index.json'}: {name} must be a {getattr(wanted, '__name__', wanted)} of diffusers or "
            f"transformers, got {class_name} of {library}. Download the checkpoint again, or set model.family to its "
            "family."
        )
    return found
