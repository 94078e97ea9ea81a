"""A checkout of this repository as it is now, uncommitted changes included, to run DVC in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_COMMANDS = (
    ("init", "--quiet"),
    ("config", "user.name", "test"),  # `dvc exp run` commits too
    ("config", "user.email", "test@localhost"),
    ("add", "--all"),
    ("commit", "--quiet", "--message", "all"),
)


def make_checkout(folder: Path) -> Path:
    """Copy what git knows, or would add, into a new folder, and commit it there; but no dvc.lock of a run in ROOT."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in set(listed.stdout.splitlines()) - {"dvc.lock"}:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for command in _COMMANDS:
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def python(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Result of `python ARGUMENTS` in a checkout, with the checkout's own code."""
    environment = os.environ | {"DVC_NO_ANALYTICS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(folder)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment | variables, capture_output=True, text=True, check=False)


def dvc(folder: Path, *command: str, **variables: str) -> str:
    """Output of a DVC command; a failure fails the test."""
    done = python(folder, "-m", "dvc", *command, **variables)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def ran(said: str) -> set[str]:
    """The stages that DVC ran, but for the one that always runs."""
    stages = {line.split("'")[1] for line in said.splitlines() if line.startswith("Running stage '")}
    return stages - {"inputs"}
