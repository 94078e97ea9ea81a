"""DVC's run cache: an entry that was being written when the disk was full, or its process killed, must not stay."""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from pathlib import Path

_WRITTEN_WITHIN = 3.0  # seconds; DVC makes a folder and puts an entry of some kilobytes there at once


def forget_unfinished(runs: Path) -> None:
    """Remove unfinished entries, and folders without an entry.

    DVC writes the entry RUNS/XX/KEY/VALUE under a temporary name. At a KEY without entries it fails instead of
    running the stage, whatever there is room for by then.

    Args:
        runs: The folder `runs` of a DVC cache; it need not exist. Other runs may do the same there.
    """
    for folder in runs.glob("??/*"):
        with suppress(FileNotFoundError):  # another run has just removed it
            if time.time() - folder.stat().st_mtime >= _WRITTEN_WITHIN:  # otherwise it may be being written
                _clear(folder)


def _clear(folder: Path) -> None:
    for entry in folder.glob("*.tmp"):
        entry.unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # both say that an entry is there
            raise
