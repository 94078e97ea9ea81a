"""DVC's run cache: remove entries left unfinished by a full disk or a killed process."""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from pathlib import Path

_WRITTEN_WITHIN = 3.0  # seconds; DVC writes an entry of some kilobytes right after making its folder


def forget_unfinished(runs: Path) -> None:
    """Remove unfinished entries, and folders without an entry.

    DVC writes the entry RUNS/XX/KEY/VALUE under a temporary name first. If a folder KEY has no entry, DVC fails
    instead of running the stage.

    Args:
        runs: Folder `runs` of a DVC cache; need not exist. Other runs may clean it at the same time.
    """
    for folder in runs.glob("??/*"):
        with suppress(FileNotFoundError):  # removed by another run
            if (
                time.time() - folder.stat().st_mtime >= _WRITTEN_WITHIN
            ):  # a newer one may still be being written
                _clear(folder)


def _clear(folder: Path) -> None:
    for entry in folder.glob("*.tmp"):
        entry.unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # both mean: the folder has an entry
            raise
