"""Queries of a git repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def resolved(repository: Path, commit: str) -> str:
    """Full hash of a commit.

    Args:
        repository: Folder inside the repository.
        commit: Any name that git resolves to a commit.

    Raises:
        RuntimeError: The folder is not in a git repository, or the commit does not exist.
    """
    return git(repository, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").strip()


def uncommitted(repository: Path) -> list[str]:
    """Lines of `git status --short`: changes that a clone would lack.

    Ignores dvc.lock: it records results, and each run writes its own.
    """
    status = git(repository, "status", "--short", "--untracked-files=normal").splitlines()
    return [line for line in status if not line.endswith("dvc.lock")]


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder and return its output. Ignores GIT_* variables, which a surrounding git hook may set.

    Raises:
        RuntimeError: git failed; the message is git's.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    result = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, env=environment, check=False
    )
    if result.returncode != 0:
        reason = result.stderr.strip() or "no such commit or folder"
        raise RuntimeError(f"git {' '.join(arguments)} in {folder}: {reason}")
    return result.stdout
