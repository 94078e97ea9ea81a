"""One flow run's own clone of the repository, at one commit: the user's checkout is only read."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from flows._dvc import share_cache


@dataclass(frozen=True)
class Workspace:
    """Where a flow run works.

    Attributes:
        path: root of the clone.
        commit: its full hash.
        uncommitted: lines of `git status --short` of the source: these changes are NOT part of the run.
    """

    path: Path
    commit: str
    uncommitted: tuple[str, ...]


def clone_workspace(repository: Path, destination: Path, commit: str = "HEAD") -> Workspace:
    """Clone a repository at one commit, with the DVC cache of the source.

    Args:
        repository: the user's checkout.
        destination: a folder that does not exist yet.
        commit: anything that git resolves to a commit.

    Raises:
        FileExistsError: the destination exists.
        RuntimeError: not a git repository, or no such commit; with git's message.
    """
    if destination.exists():
        raise FileExistsError(f"{destination} exists already: every flow run needs a clone of its own")
    sha = _git(repository, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").strip()
    status = _git(repository, "status", "--short", "--untracked-files=normal").splitlines()
    destination.parent.mkdir(parents=True, exist_ok=True)
    _git(repository, "clone", "--quiet", "--no-checkout", str(repository.resolve()), str(destination))
    _git(destination, "checkout", "--quiet", "--detach", sha)
    share_cache(repository, destination)
    # dvc.lock records results. Each run writes its own; the user's is not a change that the run would miss.
    return Workspace(destination, sha, tuple(line for line in status if not line.endswith("dvc.lock")))


def _git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, whatever repository a surrounding git hook has set in the environment."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    result = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, env=environment, check=False
    )
    if result.returncode != 0:
        reason = result.stderr.strip() or "no such commit or folder"
        raise RuntimeError(f"git {' '.join(arguments)} in {folder}: {reason}")
    return result.stdout
