"""Clones of a git repository, one per run: made at a commit, locked while in use, removed when old."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import TextIO

from chunk_grpo.git import git, resolved
from chunk_grpo.orchestration.commands import CommandStoppedError

IN_USE = Path(".git", "in-use")
"""Lock file of a clone, held while a run uses it."""

_POLL_SECONDS = 0.2
TURN = ".turn"
"""Lock file of a folder of clones, held while clones are made or removed."""


def make_clone(repository: Path, commit: str, clone: Path) -> None:
    """Clone a local repository at a commit; fetch the commit from `origin` if the repository lacks it.

    The repository is only read. RuntimeError, with git's message, if the commit is unknown or the folder exists.
    """
    clone.parent.mkdir(parents=True, exist_ok=True)
    git(repository, "clone", "--quiet", "--no-checkout", str(repository), str(clone))
    try:
        resolved(repository, commit)
    except RuntimeError:  # the commit is newer or on a branch that the repository lacks
        origin = git(repository, "remote", "get-url", "origin").strip()
        git(clone, "fetch", "--quiet", origin, commit)
    git(clone, "checkout", "--quiet", "--detach", commit)


@contextmanager
def clone_in_use(repository: Path, commit: str, clone: Path, keep: int) -> Iterator[None]:
    """Make a clone, keep it locked inside the context, and remove old clones beside it.

    A lock on the parent folder serialises this, so that other processes see no clone half made, half removed, or made
    but not locked yet. That folder contains only clones: the `keep` newest stay, and those in use.
    """
    with ExitStack() as in_use:
        with locked(clone.parent / TURN):
            make_clone(repository, commit, clone)
            in_use.enter_context(locked(clone / IN_USE))
            _prune(clone.parent, keep)
        yield


def _prune(folder: Path, keep: int) -> None:
    """Remove all clones in a folder except the newest ones and those in use."""
    clones = [path for path in folder.iterdir() if path.is_dir()]  # includes partial clones of killed processes
    clones.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for clone in clones[keep:]:
        with locked(clone / IN_USE, wait=False) as is_free:
            if is_free:
                shutil.rmtree(clone)


@contextmanager
def locked(file: Path, *, wait: bool = True, stopping: Event | None = None, shared: bool = False) -> Iterator[bool]:
    """Hold a file lock (flock); the kernel releases it when the process ends for any reason.

    Yields whether it was free at once. The file is created if missing, never removed or changed. With `wait` off, a
    taken lock is not held inside. `stopping` ends the waiting by CommandStoppedError. Others may hold the lock as well
    if all share it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with file.open("a") as stream:
        try:
            fcntl.flock(stream, kind | fcntl.LOCK_NB)
            is_free = True
        except BlockingIOError:
            is_free = False
            if stopping is not None:
                _wait_for(stream, kind, stopping)
            elif wait:
                fcntl.flock(stream, kind)
        yield is_free


def _wait_for(stream: TextIO, kind: int, stopping: Event) -> None:
    """Poll until the lock is free: a thread blocked in flock could not be stopped."""
    while not stopping.wait(_POLL_SECONDS):
        with suppress(BlockingIOError):
            fcntl.flock(stream, kind | fcntl.LOCK_NB)
            return
    raise CommandStoppedError("stopped while another run was computing the same")
