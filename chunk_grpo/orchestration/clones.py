"""Clones of a git repository, one for each run: made at a commit, kept from others while in use, removed when old."""

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
"""In a clone, the lock that its user holds."""

_POLL_SECONDS = 0.2
_TURN = ".turn"
"""In a folder of clones, the lock of who makes and removes them."""


def make_clone(repository: Path, commit: str, clone: Path) -> None:
    """Clone a repository at a commit, which is fetched from its `origin` when the repository lacks it.

    Args:
        repository: A local one; it is only read.
        commit: A full hash.
        clone: The new folder.

    Raises:
        RuntimeError: There is no such commit, or the folder exists; with git's message.
    """
    clone.parent.mkdir(parents=True, exist_ok=True)
    git(repository, "clone", "--quiet", "--no-checkout", str(repository), str(clone))
    try:
        resolved(repository, commit)
    except RuntimeError:  # the repository is older, or has another branch
        origin = git(repository, "remote", "get-url", "origin").strip()
        git(clone, "fetch", "--quiet", origin, commit)
    git(clone, "checkout", "--quiet", "--detach", commit)


@contextmanager
def clone_in_use(repository: Path, commit: str, clone: Path, keep: int) -> Iterator[None]:
    """Make a clone that nobody removes while it is in use, and remove old ones beside it.

    One process at a time does so in a folder, so that none finds a clone half made, half removed, or not in use yet.

    Args:
        repository: As in `make_clone`.
        commit: Likewise.
        clone: The new folder, in a folder of clones alone.
        keep: How many clones stay beside those in use, the newest ones.

    Raises:
        RuntimeError: As in `make_clone`.
    """
    with ExitStack() as in_use:
        with locked(clone.parent / _TURN):
            make_clone(repository, commit, clone)
            in_use.enter_context(locked(clone / IN_USE))
            _prune(clone.parent, keep)
        yield


def _prune(folder: Path, keep: int) -> None:
    """Remove all clones in a folder but the newest ones and those that are in use."""
    clones = [path for path in folder.iterdir() if path.is_dir()]  # also what a kill in here has left of one
    clones.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for clone in clones[keep:]:
        with locked(clone / IN_USE, wait=False) as is_free:
            if is_free:
                shutil.rmtree(clone)


@contextmanager
def locked(file: Path, *, wait: bool = True, stopping: Event | None = None) -> Iterator[bool]:
    """Hold a lock of this machine; the kernel gives it back when the process ends, however that ends.

    Args:
        file: Stands for the lock; it is made, and stays.
        wait: Until it is free. Otherwise it is not held when it was not free.
        stopping: No longer than until this is set.

    Yields:
        Whether it was free at once.

    Raises:
        CommandStoppedError: `stopping` was set before it was free.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = True
        except BlockingIOError:
            is_free = False
            if stopping is not None:
                _wait_for(stream, stopping)
            elif wait:
                fcntl.flock(stream, fcntl.LOCK_EX)
        yield is_free


def _wait_for(stream: TextIO, stopping: Event) -> None:
    """Take a lock when it is free; nothing can end a thread that waits for it in the kernel."""
    while not stopping.wait(_POLL_SECONDS):
        with suppress(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
    raise CommandStoppedError("stopped while another run was computing the same")
