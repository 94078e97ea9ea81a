"""What git knows of a folder's repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def resolved(repository: Path, commit: str) -> str:
    """The full hash of anything that git resolves to a commit.

    Raises:
        RuntimeError: It is no git repository, or there is no such commit.
    """
    return git(repository, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").strip()


def uncommitted(repository: Path) -> list[str]:
    """Lines of `git status --short`: changes that no clone has.

    dvc.lock records results. Each run writes its own; the user's is not a change that a run would miss.
    """
    status = git(repository, "status", "--short", "--untracked-files=normal").splitlines()
    return [line for line in status if not line.endswith("dvc.lock")]


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, whatever repository a surrounding git hook has set in the environment.

    Raises:
        RuntimeError: It failed; with its message.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    result = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, env=environment, check=False
    )
    if result.returncode != 0:
        reason = result.stderr.strip() or "no such commit or folder"
        raise RuntimeError(f"git {' '.join(arguments)} in {folder}: {reason}")
    return result.stdout
