"""What identifies a base model's files, and whether they are still those that a run began with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunk_grpo.digests import Digests
from chunk_grpo.errors import ConfigError, DataError

_COMMIT = re.compile(r"[0-9a-f]{40}")


def checkpoint_record(checkpoint: str, revision: str | None, digests: Digests) -> dict[str, str | None]:
    """The content of a checkpoint folder, or the commit of a hub id.

    Of a folder, all files of its parts count, and at the top its JSON files: single files with all weights, as some
    downloads have them there, are read by nothing.

    Args:
        checkpoint: Folder in the diffusers layout, or hub id.
        revision: Hub commit; None for a folder.
        digests: Of files.

    Returns:
        `files` or `commit`; both None when there is no such folder.

    Raises:
        ConfigError: It is a hub id, and its revision is no commit.
        DataError: A file cannot be read.
    """
    folder = Path(checkpoint)
    if folder.exists():
        return {"files": digests.of(folder, _is_read), "commit": None}
    if len(folder.parts) != 2 or checkpoint.startswith((".", "/", "~")):
        return {"files": None, "commit": None}  # the first stage that looks for it says so
    if revision is None or not _COMMIT.fullmatch(revision):
        raise ConfigError(
            "model.revision: must be a commit of the hub (40 hexadecimal digits) where model.checkpoint is a hub id, "
            f"got {revision!r} for {checkpoint}: a branch moves, and results in the cache would be of another model. "
            f"The commits are listed on the page of {checkpoint} under `Files and versions`."
        )
    return {"files": None, "commit": revision}


def require_recorded(checkpoint: str, revision: str | None, record: Mapping[str, Any], source: str) -> None:
    """Refuse a checkpoint that is another one than was recorded.

    Args:
        checkpoint: Folder or hub id.
        revision: Hub commit; None for a folder.
        record: Of `checkpoint_record`, when the run began.
        source: Its file, for messages.

    Raises:
        DataError: Its files differ: they were changed since, or are others on this machine.
    """
    if checkpoint_record(checkpoint, revision, Digests()) != record:
        raise DataError(
            f"model.checkpoint: the files of {checkpoint} are not those that {source} was written for. They were "
            "changed meanwhile, or are others on this machine. Run `dvc repro`, which begins with what is there now."
        )


def _is_read(path: Path) -> bool:
    return len(path.parts) > 1 or path.suffix == ".json"
