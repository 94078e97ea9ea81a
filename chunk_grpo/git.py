"""Queries of a git repository. A RuntimeError has what git says of a folder, commit or name that it refuses."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

WORKING_TREE = "working-tree"
"""Name of the files of a checkout as they are, in place of a commit."""

LFS_POINTER = "version https://git-lfs.github.com/spec/"
"""Beginning of the small file that Git LFS puts in place of one that was not fetched."""

FETCH_LFS = "this is a pointer of Git LFS, not the file itself: run `git lfs pull` in its repository"

_SUBJECT = "Uncommitted edits, for a run"


def resolved(repository: Path, commit: str) -> str:
    """Full hash of a commit, by any name that git resolves to one."""
    return git(repository, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").strip()


def uncommitted(repository: Path) -> list[str]:
    """Lines of `git status --short`: changes that a clone would lack.

    Ignores dvc.lock: it records results, and each run writes its own.
    """
    status = git(repository, "status", "--short", "--untracked-files=normal").splitlines()
    return [line for line in status if not line.endswith("dvc.lock")]


def commit_of_working_tree(repository: Path) -> str:
    """Commit of the files as they are: HEAD with all edits, and the new files that git does not ignore.

    No branch has the commit, nor has another repository; files, index and branches stay as they are. Without edits it
    is HEAD. An uncommitted dvc.lock is no edit, as in `uncommitted`. `repository` is its root.
    """
    return _commit(repository, _SUBJECT, "--all", ".", ":(exclude)dvc.lock")


def save_experiment(clone: Path, repository: Path, name: str) -> None:
    """Save params.yaml and dvc.lock of a clone as an experiment of DVC in another repository.

    An experiment is a commit on the one that it started from, named by a reference; `dvc exp show` lists it. Here git
    makes it, because `dvc exp save` in two clones or worktrees of one repository mixes their files (ADR 24). An earlier
    one of that name, which has no slashes, on the same commit is replaced.
    """
    head = resolved(clone, "HEAD")
    commit = _commit(clone, f"Run {name}", "--force", "params.yaml", "dvc.lock")
    reference = f"refs/exps/{head[:2]}/{head[2:]}/{name}"
    git(clone, "push", "--quiet", "--force", "--no-verify", str(repository), f"{commit}:{reference}")


def _commit(repository: Path, subject: str, *added: str) -> str:
    """Commit files on HEAD, in no branch and without the repository's index; HEAD itself if that changes nothing.

    `added` are arguments of `git add`.
    """
    head = resolved(repository, "HEAD")
    with tempfile.TemporaryDirectory(prefix="index-") as folder:
        index = Path(folder, "index")
        git(repository, "read-tree", head, index=index)
        git(repository, "add", *added, index=index)
        tree = git(repository, "write-tree", index=index).strip()
    if tree == git(repository, "rev-parse", f"{head}^{{tree}}").strip():
        return head
    author = ("-c", "user.name=chunk-grpo", "-c", "user.email=chunk-grpo@localhost")
    return git(repository, *author, "commit-tree", tree, "-p", head, "-m", subject).strip()


def is_of_working_tree(repository: Path, commit: str) -> bool:
    """Whether `commit_of_working_tree` made a commit of edits."""
    return git(repository, "log", "-1", "--format=%s", commit).strip() == _SUBJECT


def git(folder: Path, *arguments: str, index: Path | None = None) -> str:
    """Run git in a folder and return its output; `index` takes the place of the repository's own.

    Ignores GIT_* variables, which a surrounding git hook may set.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index)
    result = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, env=environment, check=False
    )
    if result.returncode != 0:
        reason = result.stderr.strip() or "no such commit or folder"
        raise RuntimeError(f"git {' '.join(arguments)} in {folder}: {reason}")
    return result.stdout
