"""Records of the files of a base model and of saved policies."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from chunk_grpo.config.policies import PolicyFiles
from chunk_grpo.digests import Digests
from chunk_grpo.errors import ConfigError, DataError

_COMMIT = re.compile(r"[0-9a-f]{40}")


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
    return _content_record(checkpoint, revision, digests, ("model.checkpoint", "model.revision"), _is_read)


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
    found = _content_record(policy.path, policy.revision, digests, (f"{key}.path", f"{key}.revision"))
    if not any(found.values()):
        raise DataError(f"{key}.path: no such file or folder, and no hub id (owner/name), got {policy.path}")
    return found


def _content_record(
    location: str,
    revision: str | None,
    digests: Digests,
    keys: tuple[str, str],
    chosen: Callable[[Path], bool] = lambda path: True,
) -> dict[str, str | None]:
    """Digest of a file or folder, or the commit of a hub id.

    Args:
        location: File, folder or hub id.
        revision: Hub commit; None for a file or folder.
        digests: Cache of file digests.
        keys: Keys of location and revision in params.yaml, for messages.
        chosen: The files of a folder that count, by their path in it.

    Returns:
        As `checkpoint_record`.

    Raises:
        ConfigError: The revision of a hub id is not a commit.
        DataError: A file cannot be read.
    """
    path = Path(location)
    if (files := digests.of(path, chosen)) is not None:
        return {"files": files, "commit": None}
    if len(path.parts) != 2 or location.startswith((".", "/", "~")):
        return {"files": None, "commit": None}  # the first stage that needs the folder reports it
    if revision is None or not _COMMIT.fullmatch(revision):
        raise ConfigError(
            f"{keys[1]}: must be a commit of the hub (40 hexadecimal digits) where {keys[0]} is a hub id, "
            f"got {revision!r} for {location}: a branch moves, and cached results would belong to another model. "
            f"The commits are listed on the page of {location} under `Files and versions`."
        )
    return {"files": None, "commit": revision}


def _is_read(path: Path) -> bool:
    return len(path.parts) > 1 or path.suffix == ".json"
