"""Virtual environments with the original scorers' packages, for the differential tests (slow)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chunk-grpo" / "originals"
"""Kept from run to run; whatever is in it can be made again."""


def python_with(name: str, requirements: Sequence[str], alone: Sequence[str] = ()) -> Path:
    """The interpreter of an environment with these packages, made once and kept in the user's cache folder.

    The name is its folder's. pip installs `requirements` with what they need, `alone` without.
    """
    what = "\n".join([sys.version, *requirements, "", *alone])
    folder = CACHE / f"{name}-{hashlib.sha256(what.encode()).hexdigest()[:8]}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *requirements], check=True)
        if alone:
            subprocess.run([*install, "--no-deps", *alone], check=True)
        complete.write_text(what)
    return python


def run_original(python: Path, script: str, folder: Path, *arguments: str) -> None:
    """Run a script of this folder by another interpreter, in `folder`, without our packages and without the hub."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    command = [str(python), str(Path(__file__).parent / script), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
