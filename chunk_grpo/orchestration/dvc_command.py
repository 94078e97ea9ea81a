"""DVC's command line, for its output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from chunk_grpo.errors import ConfigError


def dvc(folder: Path, *arguments: str, check: bool = True) -> str:
    """Output of a DVC command in a repository.

    Raises:
        ConfigError: The command failed, and `check` is on.
    """
    command = [sys.executable, "-m", "dvc", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise ConfigError(f"dvc {arguments[0]} failed in {folder}: {done.stdout}{done.stderr}")
    return done.stdout
