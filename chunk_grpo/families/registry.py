"""Registry of model families by name."""

from __future__ import annotations

from collections.abc import Sequence

from chunk_grpo.errors import ConfigError
from chunk_grpo.families.base import Family, LoadOptions, Part
from chunk_grpo.families.flux import FluxFamily

FAMILIES = {"flux": FluxFamily}


def load_family(name: str, options: LoadOptions, parts: Sequence[Part]) -> Family:
    """Load parts of a checkpoint.

    Args:
        name: Name of the family, a key of `FAMILIES`.
        options: Checkpoint and settings.
        parts: Parts to load.

    Raises:
        ConfigError: Unknown family.
        DataError: The checkpoint is missing, broken or of another family.
    """
    if name not in FAMILIES:
        raise ConfigError(f"model.family: must be one of {', '.join(FAMILIES)}, got {name!r}")
    return FAMILIES[name].load(options, parts)
