"""The checkpoint of a plan: config.json of its parts, from a local folder or the files of known hub ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.tracing import Checkpoint, check_class, component_names
from chunk_grpo.families.weights.records import may_be_hub_id

KNOWN = Path(__file__).parent / "checkpoints"
"""Configurations of hub ids, so that planning needs no network and no licence: ORG--NAME.json, an object with the
content of config.json by component, as far as sizes depend on it, and `source`, where they are from."""


def read_checkpoint(family: str, checkpoint: str) -> Checkpoint:
    """Read the configurations of `model.checkpoint`: a local folder, or a hub id with a file in `KNOWN`."""
    names, folder, file = component_names(family), Path(checkpoint), known_file(checkpoint)
    if folder.is_dir():
        path = folder / "transformer" / "config.json"
        check_class(family, str(path), _read(path))
        found = {name: _read(folder / name / "config.json") for name in names}
    elif file.is_file():
        found = _read(file)
        check_class(family, str(file), found.get("transformer", {}))
        for name in names:
            if name not in found:
                raise DataError(
                    f"{file}: must hold {name} for model.family {family}, and does not; set model.family to the family "
                    "of the checkpoint"
                )
    elif not may_be_hub_id(checkpoint):
        raise ConfigError(f"model.checkpoint: there is no folder {checkpoint!r}; give a folder in the diffusers layout")
    else:
        raise ConfigError(
            f"model.checkpoint: planning reads config.json of a local folder, or knows {', '.join(known_ids())}; got "
            f"{checkpoint!r}. Download its config.json files (hf download {checkpoint} --include '*/config.json' "
            "--local-dir FOLDER) and set model.checkpoint to the folder."
        )
    return Checkpoint(family, checkpoint, json.dumps({name: found[name] for name in names}))


def known_file(checkpoint: str) -> Path:
    """File of a hub id's configurations, which may not exist."""
    return KNOWN / f"{checkpoint.replace('/', '--')}.json"


def known_ids() -> list[str]:
    """Hub ids with a file."""
    return sorted(file.stem.replace("--", "/", 1) for file in KNOWN.glob("*.json"))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a folder in the diffusers layout") from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); give the checkpoint's own file") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: must be a JSON object; give the checkpoint's own file")
    return content
