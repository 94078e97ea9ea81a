"""The family of a name: a module of `chunk_grpo.families.models`, or a module of your own."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from chunk_grpo.config.families import module_of
from chunk_grpo.errors import ConfigError

if TYPE_CHECKING:
    from chunk_grpo.families.base import Family, LoadOptions, Part
    from chunk_grpo.families.diffusers_family import DiffusersFamily


def family_class(name: str) -> type[DiffusersFamily]:
    """The class of a family.

    Args:
        name: `model.family`.

    Raises:
        ConfigError: The module cannot be imported, or has no `FAMILY`.
    """
    module = module_of(name)
    try:
        found: type[DiffusersFamily] = importlib.import_module(module).FAMILY
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"model.family: {module} must be a module with a class FAMILY ({error})") from error
    return found


def check_edits(name: str, *, edits: bool) -> None:
    """Require that a family edits pictures, or draws new images.

    Args:
        name: `model.family`.
        edits: Whether the prompts have pictures to edit.

    Raises:
        ConfigError: It draws new images only, or only edits, or there is no such family.
    """
    from chunk_grpo.families.sources import edits_nothing, needs_pictures  # here: torch takes seconds

    of = family_class(name)
    if edits and not of.edits:
        raise edits_nothing(name)
    if of.only_edits and not edits:
        raise needs_pictures(name)


def load_family(name: str, options: LoadOptions, parts: Sequence[Part]) -> Family:
    """Load parts of a checkpoint.

    Args:
        name: `model.family`.
        options: Checkpoint and settings.
        parts: Parts to load.

    Raises:
        ConfigError: There is no such family.
        DataError: The checkpoint is missing, broken or of another family.
    """
    return family_class(name).load(options, parts)


def check_checkpoint(
    name: str,
    options: LoadOptions,
    sizes: Iterable[tuple[int, int]],
    lora_targets: Sequence[str] | None,
    start: Path | None = None,
) -> None:
    """Check a checkpoint's folder against settings, from its configurations and the headers of its files alone.

    Logs a warning about a model that is distilled to few steps.

    Args:
        name: `model.family`.
        options: Checkpoint and settings.
        sizes: Heights and widths of the images in pixels.
        lora_targets: Layers of the adapter to train; None: none is trained.
        start: Policy with which training starts; None: the base model.

    Raises:
        ConfigError: There is no such family, a size does not fit the checkpoint, or it has no such layer.
        DataError: The checkpoint is missing, broken or of another family, or its files do not fit its networks.
    """
    # Here: torch takes seconds.
    from chunk_grpo.families.weights.checkpoint import warn_of_distilled
    from chunk_grpo.families.weights.lora import check_targets
    from chunk_grpo.families.weights.policy import check_start

    # Kernels of attention are tried where they run, and there are no values to quantise.
    described = replace(
        options, device="meta", attention_backend=None, base_precision=None, text_precision=None, block_swap=0.0
    )
    family = family_class(name).load(described)
    for height, width in sizes:
        family.resized(height, width)
    warn_of_distilled(options.checkpoint)
    if lora_targets is not None:
        check_targets(family.transformer, tuple(lora_targets))
    if start is not None:
        check_start(family.transformer, start, family.original_layers, is_adapter=lora_targets is not None)
