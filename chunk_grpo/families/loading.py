"""Pipelines of diffusers, loaded whole or in part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.checkpoint import check_checkpoint


def load_pipeline(
    pipeline_class: Any, options: LoadOptions, components: Iterable[str], left_out: Mapping[str, None]
) -> Any:
    """Load a pipeline with frozen networks on `options.device`.

    Args:
        pipeline_class: Pipeline of diffusers.
        options: Checkpoint and settings.
        components: Components to load.
        left_out: Components not to load, each None.

    Raises:
        DataError: The checkpoint is missing, incomplete or of another family.
        ConfigError: A folder has a revision.
    """
    if options.revision is not None and Path(options.checkpoint).is_dir():
        raise ConfigError(
            f"model.revision: must be null, since model.checkpoint {options.checkpoint} is a folder and only a hub "
            f"id has revisions, got {options.revision!r}"
        )
    check_checkpoint(options.checkpoint, pipeline_class.__name__, components)
    try:
        pipeline = pipeline_class.from_pretrained(
            options.checkpoint, revision=options.revision, dtype=options.dtype, **left_out
        )
    except (ImportError, OSError, ValueError) as error:
        raise DataError(
            f"model.checkpoint: cannot load {options.checkpoint} (revision {options.revision}): {error}. "
            "A hub id needs the network, and often an accepted licence and `hf auth login`."
        ) from error
    pipeline.set_progress_bar_config(disable=True)
    for module in pipeline.components.values():
        if isinstance(module, nn.Module):
            module.requires_grad_(False).eval().to(options.device)
    for module in () if pipeline.vae is None else pipeline.vae.modules():
        if isinstance(module, nn.Conv2d):
            # On a CPU, convolutions are several times faster with channels last; on a GPU it does no harm.
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # its stub lacks it
    return pipeline
