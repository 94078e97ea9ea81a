"""DVC's run cache: an entry that was being written when the disk was full, or its process killed, must not stay."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

_WRITTEN_WITHIN = 3.0  # seconds; DVC makes a folder and puts an entry of some kilobytes there at once


def forget_unfinished(runs: Path) -> None:
    """Remove unfinished entries, and folders without an entry.

    DVC writes the entry RUNS/XX/KEY/VALUE under a temporary name. At a KEY without entries it fails instead of
    running the stage, whatever there is room for by then.

    Args:
        runs: The folder `runs` of a DVC cache; it need not exist.
    """
    for folder in runs.glob("??/*"):
        if time.time() - folder.stat().st_mtime < _WRITTEN_WITHIN:
            continue  # maybe it is being written
        for entry in folder.glob("*.tmp"):
            entry.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            with suppress(OSError):  # another run has just removed it, or written to it
                folder.rmdir()
