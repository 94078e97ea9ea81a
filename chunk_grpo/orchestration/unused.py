"""Remove from a DVC cache what nothing needs any more, by `dvc gc`.

`dvc gc` keeps what DVC projects name. Published runs and old commits have a dvc.lock but are no projects, and in a
clone DVC takes only the stages of dvc.yaml into account. So all results that must stay are listed in a file keep.dvc
of a temporary project, for `dvc gc --projects`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from chunk_grpo.artifacts.io import read_text
from chunk_grpo.artifacts.storage import is_remote, join, sizes_below
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.git import git
from chunk_grpo.orchestration.cache_use import IN_USE, cache_of, places
from chunk_grpo.orchestration.clones import TURN, locked
from chunk_grpo.orchestration.dvc_command import dvc
from chunk_grpo.orchestration.dvc_internals import Config
from chunk_grpo.orchestration.run_cache import LOADER, entries, forget_unusable, object_file

_LOCKS = (":(glob)**/dvc.lock", ":(glob)**/*.dvc")
_REMOVING = "Removing "


@dataclass(frozen=True)
class Keepers:
    """Places whose results stay in a cache."""

    checkouts: tuple[Path, ...]
    """Repositories with their history; the first one is where DVC runs."""
    homes: tuple[Path, ...]
    """Folders of workspaces: HOME/runs has clones, HOME/published may have published runs."""
    published: tuple[str, ...]
    """Further folders or URLs of published runs."""

    @classmethod
    def of(cls, checkout: Path, home: Path, published: str | None, others: Sequence[Path]) -> Keepers:
        """The places that are given, and those that runs have remembered in the checkout's cache.

        `published` is a folder or URL; None: below `home`, the folder of workspaces, alone. `others` use the same
        cache. A missing folder where runs were published is an error: it may be a disk that is not mounted.
        """
        cache = cache_of(checkout)
        homes = dict.fromkeys([home, *map(Path, places(cache, "home"))])
        roots = dict.fromkeys(places(cache, "published"))
        for root in roots:
            below = any(Path(root).is_relative_to(each) for each in homes)
            if not (is_remote(root) or below or Path(root).exists()):
                raise ConfigError(
                    f"{root}: must be there, since runs were published in it and their results are kept; mount it, "
                    f"or, if it was removed, remove its line from {cache / IN_USE}"
                )
        return cls((checkout, *others), tuple(homes), (*roots, *([published] if published else [])))

    @property
    def clones(self) -> list[Path]:
        """Clones of flow runs."""
        return [path for home in self.homes for path in sorted((home / "runs").glob("*")) if path.is_dir()]

    @property
    def workspaces(self) -> list[Path]:
        """Checkouts and clones."""
        return [*self.checkouts, *self.clones]

    def named(self) -> set[str]:
        """MD5s of the outputs that the places name; an unreadable dvc.lock or *.dvc file is an error."""
        found = {md5 for checkout in self.checkouts for md5 in _of_commits(checkout)}
        published = [*self.published, *(str(home / "published") for home in self.homes)]
        locations = {path for folder in self.workspaces for path in _lock_files(folder)}
        locations |= {join(root, path) for root in published for path in sizes_below(root) if _is_lock(path)}
        for location in sorted(locations):
            try:
                found |= _outputs(yaml.load(read_text(location), LOADER))
            except yaml.YAMLError as error:
                raise DataError(
                    f"{location}: must be YAML, as DVC writes it: {error}. Its results stay, so nothing was removed; "
                    "repair the file, or remove it"
                ) from error
        return found


@contextmanager
def cache_for_removal(keepers: Keepers, *, delete: bool) -> Iterator[bool]:
    """Keep runs from starting, and clones from being made or removed, inside the context.

    Yields whether no flow run uses the cache. TransientError if DVC runs a stage in a checkout, whose lock `dvc gc`
    needs; with `delete`, also if a flow run uses the cache, or DVC runs a stage in a clone.
    """
    with ExitStack() as held:
        file = cache_of(keepers.checkouts[0]) / IN_USE
        is_free = held.enter_context(locked(file, wait=False))
        if delete and not is_free:
            raise TransientError(
                f"{file.parent}: must not be in use while results are removed, but a flow run uses it; run `make gc` "
                "again when no run is active"
            )
        for home in keepers.homes:
            if (home / "runs").is_dir():
                held.enter_context(locked(home / "runs" / TURN))
        for workspace in keepers.workspaces if delete else keepers.checkouts:
            _refuse_while_dvc_runs(workspace)
        yield is_free


def unused_files(keepers: Keepers, kept: Collection[str]) -> list[Path]:
    """Files of the cache that `dvc gc`, in the first checkout, would remove.

    Outputs whose MD5s are in `kept` stay, with the content of their folders.
    """
    said = _gc(keepers, kept, "--dry")
    return [Path(line.removeprefix(_REMOVING)) for line in said.splitlines() if line.startswith(_REMOVING)]


def remove_unused(keepers: Keepers, kept: Collection[str]) -> None:
    """Remove these files, and the entries of the run cache whose outputs are gone."""
    _gc(keepers, kept)
    forget_unusable(cache_of(keepers.checkouts[0]))


def by_output(cache: Path, files: Iterable[Path]) -> dict[str, list[Path]]:
    """Files of a cache by the output that they were made as, such as `artifacts/train`; `?` if unknown."""
    name_of: dict[str, str] = {}
    for _, outputs in entries(cache):
        for output in outputs:
            name, md5 = "/".join(output["path"].split("/")[:2]), output["md5"]
            name_of[md5] = name
            listing = object_file(cache, md5)
            if md5.endswith(".dir") and listing.exists():
                name_of |= dict.fromkeys((file["md5"] for file in json.loads(listing.read_bytes())), name)
    found: dict[str, list[Path]] = {}
    for file in files:
        found.setdefault(name_of.get(file.parent.name + file.name, "?"), []).append(file)
    return dict(sorted(found.items()))


def _gc(keepers: Keepers, kept: Collection[str], *options: str) -> str:
    """Output of `dvc gc`, with a temporary project that names what stays."""
    checkout = keepers.checkouts[0]
    cache = cache_of(checkout)
    with tempfile.TemporaryDirectory(prefix="keep-") as folder:
        (Path(folder) / ".dvc").mkdir()
        with Config(str(Path(folder) / ".dvc")).edit("repo") as config:
            config["core"].update(no_scm=True, site_cache_dir=str(Path(folder) / "site"))
            config["cache"]["dir"] = str(cache)
        # What is not in the cache cannot be removed; without its list DVC would ask the remote for a folder.
        there = sorted(md5 for md5 in kept if object_file(cache, md5).exists())
        outs = [{"md5": md5, "hash": "md5", "path": str(number)} for number, md5 in enumerate(there)]
        (Path(folder) / "keep.dvc").write_text(json.dumps({"outs": outs}), encoding="utf-8")
        return dvc(checkout, "gc", "--workspace", "--force", *options, "--projects", folder)


def _refuse_while_dvc_runs(workspace: Path) -> None:
    """Raise if DVC runs a stage in a repository, also of an experiment: it then does not hold its lock."""
    for folder in (workspace, *(workspace / ".dvc" / "tmp" / "exps").glob("*")):
        file = folder / ".dvc" / "tmp" / "rwlock"
        locks = json.loads(file.read_bytes()) if file.exists() else {}
        readers = [user for users in locks.get("read", {}).values() for user in users]
        for user in [*locks.get("write", {}).values(), *readers]:
            if psutil.pid_exists(user["pid"]):
                raise TransientError(
                    f"{folder}: must not be in use while its cache is looked through, but process {user['pid']} "
                    f"runs `{user['cmd']}`; run `make gc` again when it has ended"
                )


def _is_lock(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return name == "dvc.lock" or (name.endswith(".dvc") and name != ".dvc")


def _lock_files(folder: Path) -> Iterator[str]:
    """Files of DVC below a folder that name outputs; hidden folders have none."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (join(parent, name) for name in names if _is_lock(name))


def _of_commits(repository: Path) -> Iterator[str]:
    """MD5s of the outputs that the commits of all branches, tags, stashes and experiments name."""
    log = git(
        repository, "log", "--all", "-m", "--raw", "--no-abbrev", "--no-renames", "--format=", "--", *_LOCKS
    )
    for blob in {line.split()[3] for line in log.splitlines()}:
        if blob.strip("0"):  # it was not removed by the commit
            with suppress(yaml.YAMLError):  # DVC cannot read it either, and nobody can repair it
                yield from _outputs(yaml.load(git(repository, "cat-file", "blob", blob), LOADER))


def _outputs(content: Any) -> set[str]:
    """MD5s of the outputs in the content of a dvc.lock or *.dvc file."""
    if not isinstance(content, dict):
        return set()
    outs = content.get("outs")
    found = {str(out["md5"]) for out in outs if "md5" in out} if isinstance(outs, list) else set()
    return found.union(*(_outputs(value) for value in content.values()))
