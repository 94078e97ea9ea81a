"""What stands for the files of a base model or a saved policy in a record: their digest, or the commit of a hub id."""

from __future__ import annotations

import re
from pathlib import Path

from chunk_grpo.config.policies import PolicyFiles
from chunk_grpo.digests import Digests
from chunk_grpo.errors import ConfigError, DataError

_COMMIT = re.compile(r"[0-9a-f]{40}")


def may_be_hub_id(location: str) -> bool:
    """Whether this is no file or folder here, but may be the name of a repository."""
    path = Path(location)
    return not path.exists() and len(path.parts) == 2 and not location.startswith((".", "/", "~"))


def checkpoint_record(checkpoint: str, revision: str | None, digests: Digests) -> dict[str, str | None]:
    """Digest of a checkpoint folder, or the commit of a hub id.

    The digest covers all files in subfolders and the JSON files at the top. Other files at the top, such as the
    single-file weights of some downloads, are not read by the pipeline.

    Args:
        checkpoint: Folder in the diffusers layout, or hub id.
        revision: Hub commit; None for a folder.
        digests: Cache of file digests.

    Returns:
        `files` and `commit`, one of them None; both None if the folder does not exist.

    Raises:
        ConfigError: The revision of a hub id is not a commit.
        DataError: A file cannot be read.
    """
    files = digests.of(checkpoint, lambda path: len(path.parts) > 1 or path.suffix == ".json")
    return _record(files, checkpoint, revision, ("model.checkpoint", "model.revision"))


def policy_record(policy: PolicyFiles, key: str, digests: Digests) -> dict[str, str | None]:
    """Digest of a policy's files, or the commit of a hub id, as in `checkpoint_record`.

    Args:
        policy: The policy.
        key: Its key in params.yaml, for messages.
        digests: Cache of file digests.

    Raises:
        ConfigError: The revision of a hub id is not a commit.
        DataError: There is no such file, or it cannot be read.
    """
    files = digests.of(policy.path)
    found = _record(files, policy.path, policy.revision, (f"{key}.path", f"{key}.revision"))
    if not any(found.values()):
        raise DataError(
            f"{key}.path: no such file or folder, and no hub id (owner/name), got {policy.path}; fix the path, or "
            f"remove {key}"
        )
    return found


def _record(files: str | None, location: str, revision: str | None, keys: tuple[str, str]) -> dict[str, str | None]:
    if files is not None or not may_be_hub_id(location):
        return {"files": files, "commit": None}  # the first stage that needs a missing folder reports it
    if revision is None or not _COMMIT.fullmatch(revision):
        raise ConfigError(
            f"{keys[1]}: must be a commit of the hub (40 hexadecimal digits) where {keys[0]} is a hub id, "
            f"got {revision!r} for {location}, which is no file or folder here: fix the path, or take a commit from "
            f"the hub's page of {location} under `Files and versions` (a branch moves, and cached results would belong "
            "to another model)."
        )
    return {"files": None, "commit": revision}
