"""Use of a DVC cache by the flow runs of this machine: its lock, and the places where they leave results.

Both are in one file of the cache's folder, so that runs of all checkouts and of every PREFECT_HOME are known that share
the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

from chunk_grpo.artifacts.storage import is_remote
from chunk_grpo.orchestration.clones import locked
from chunk_grpo.orchestration.dvc_internals import Repo

IN_USE = "in-use"
"""File in the folder of a cache. A run holds its lock shared with other runs, `make gc` alone."""

PlaceKind: TypeAlias = Literal["home", "published"]
"""`home`: folder of workspaces (PREFECT_HOME); `published`: folder or URL of published runs."""


def cache_of(repository: Path) -> Path:
    """Folder of the DVC cache of a repository: `files` and `runs` are in it."""
    with Repo(str(repository)) as repo:
        return Path(repo.cache.local.path).parents[1]


@contextmanager
def cache_in_use(cache: Path, home: Path) -> Iterator[None]:
    """Keep `make gc` from removing anything; wait until it has ended.

    `home`, the folder of the run's workspace and of others, is remembered in the cache.
    """
    _remember(cache, "home", str(home))
    with locked(cache / IN_USE, shared=True):
        yield


def remember_published(cache: Path, root: str) -> None:
    """Remember a folder or URL of published runs, so that `make gc` keeps what they name."""
    _remember(cache, "published", root if is_remote(root) else str(Path(root).resolve()))


def places(cache: Path, kind: PlaceKind) -> list[str]:
    """The remembered places of a kind."""
    file = cache / IN_USE
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return [line.removeprefix(f"{kind} ") for line in lines if line.startswith(f"{kind} ")]


def _remember(cache: Path, kind: PlaceKind, place: str) -> None:
    if place not in places(cache, kind):
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / IN_USE).open("a", encoding="utf-8") as stream:
            stream.write(f"{kind} {place}\n")
