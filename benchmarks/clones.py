"""Clones of this repository's commit, in which benchmarks run the pipeline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from chunk_grpo.orchestration.dvc_state import keep_own_state

ROOT = Path(__file__).resolve().parents[1]


def make_clone(folder: Path) -> Path:
    """A clone of this repository at its commit, new or brought to it."""
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(folder)], check=True)
    for command in (
        ["fetch", "--quiet", str(ROOT), "HEAD"],
        ["checkout", "--quiet", "--force", "FETCH_HEAD"],
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    keep_own_state(folder)
    return folder


def environment(clone: Path) -> dict[str, str]:
    """Environment of commands in a clone: its own code, this Python, no hub."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return os.environ | {
        "PATH": path,
        "PYTHONPATH": str(clone),
        "DVC_NO_ANALYTICS": "1",
        "HF_HUB_OFFLINE": "1",
    }
