"""The DVC cache that runs share: its lock, its run cache, and the removal of what nothing names, by `dvc gc`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from chunk_grpo.errors import TransientError
from chunk_grpo.orchestration.clones import locked
from chunk_grpo.orchestration.commands import dvc
from chunk_grpo.orchestration.dvc_internals import Repo

IN_USE = "in-use"
"""Lock file in the folder of a cache: a run holds it shared with other runs, `make gc` alone."""

_WRITTEN_WITHIN = 3.0  # seconds; DVC writes an entry of some kilobytes right after making its folder
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast
_REMOVING = "Removing "


def cache_of(repository: Path) -> Path:
    """Folder of the DVC cache of a repository: `files` and `runs` are in it."""
    with Repo(str(repository)) as repo:
        return Path(repo.cache.local.path).parents[1]


@contextmanager
def cache_in_use(cache: Path) -> Iterator[None]:
    """Keep `make gc` from removing anything; wait until it has ended."""
    with locked(cache / IN_USE, shared=True):
        yield


@contextmanager
def cache_for_removal(checkouts: Sequence[Path], *, delete: bool) -> Iterator[bool]:
    """Keep flow runs from using the cache of the checkouts inside the context.

    Yields whether no flow run uses it. TransientError if DVC runs a stage in a checkout; with `delete`, also if a flow
    run uses the cache.
    """
    file = cache_of(checkouts[0]) / IN_USE
    with locked(file, wait=False) as is_free:
        if delete and not is_free:
            raise TransientError(
                f"{file.parent}: must not be in use while results are removed, but a flow run uses it; run `make gc` "
                "again when no run is active"
            )
        for checkout in checkouts:
            _refuse_while_dvc_runs(checkout)
        yield is_free


def unused_files(checkouts: Sequence[Path]) -> list[Path]:
    """Files of the cache that `remove_unused` would remove."""
    said = _gc(checkouts, "--dry")
    return [Path(line.removeprefix(_REMOVING)) for line in said.splitlines() if line.startswith(_REMOVING)]


def remove_unused(checkouts: Sequence[Path]) -> None:
    """Remove results that no checkout, branch, tag or experiment names, and the entries of the run cache for them."""
    _gc(checkouts)
    forget_unusable(cache_of(checkouts[0]))


def _gc(checkouts: Sequence[Path], *options: str) -> str:
    """Output of `dvc gc` in the first checkout."""
    kept = ("--workspace", "--all-branches", "--all-tags", "--all-experiments")
    others = ("--projects", *map(str, checkouts[1:])) if len(checkouts) > 1 else ()
    return dvc(checkouts[0], "gc", "--force", *kept, *options, *others)


def _refuse_while_dvc_runs(checkout: Path) -> None:
    """Raise if DVC runs a stage in a checkout, also of an experiment: it then does not hold its lock."""
    for folder in (checkout, *(checkout / ".dvc" / "tmp" / "exps").glob("*")):
        file = folder / ".dvc" / "tmp" / "rwlock"
        locks = json.loads(file.read_bytes()) if file.exists() else {}
        readers = [user for users in locks.get("read", {}).values() for user in users]
        for user in [*locks.get("write", {}).values(), *readers]:
            if psutil.pid_exists(user["pid"]):
                raise TransientError(
                    f"{folder}: must not be in use while its cache is looked through, but process {user['pid']} "
                    f"runs `{user['cmd']}`; run `make gc` again when it has ended"
                )


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


def object_file(cache: Path, md5: str) -> Path:
    """File of an output in the cache; its MD5 ends in `.dir` for a folder, whose list of files it is then."""
    return cache / "files" / "md5" / md5[:2] / md5[2:]


def entries(cache: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Each entry's file and its outputs (path, md5, size), except entries that are damaged or being written."""
    for file in (cache / "runs").glob("??/*/*"):
        with suppress(yaml.YAMLError, FileNotFoundError):  # DVC removes damaged ones itself
            content = yaml.load(file.read_bytes(), _LOADER)
            if file.suffix != ".tmp" and isinstance(content, dict):
                yield file, content.get("outs", [])


def forget_unusable(cache: Path) -> None:
    """Remove the entries with an output that the cache lacks; no other process may write to the cache.

    DVC takes the newest entry of a computation alone: one without outputs hides an older one that has them.
    """
    for file, outputs in entries(cache):
        if not all(object_file(cache, output["md5"]).exists() for output in outputs):
            file.unlink()
            _clear(file.parent)


def forget_unfinished(runs: Path) -> None:
    """Remove unfinished entries of the folder `runs`, and folders without an entry.

    DVC writes the entry RUNS/XX/KEY/VALUE under a temporary name first. If a folder KEY has no entry, DVC fails instead
    of running the stage. RUNS need not exist; other runs may clean it at the same time.
    """
    for folder in runs.glob("??/*"):
        with suppress(FileNotFoundError):  # removed by another run
            # A newer one may still be being written.
            if time.time() - folder.stat().st_mtime >= _WRITTEN_WITHIN:
                _clear(folder)


def _clear(folder: Path) -> None:
    for entry in folder.glob("*.tmp"):
        entry.unlink(missing_ok=True)
    with suppress(OSError):  # it has an entry
        folder.rmdir()
