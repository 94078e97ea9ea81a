"""SHA-256 of files and folders. A file is read again only after its size, times or inode have changed."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from chunk_grpo.errors import DataError
from chunk_grpo.progress import Meter

MEMORY = Path(".inputs/digests.json")
"""Cache of digests. Deleting it costs only time."""

_SETTLED_SECONDS = 2.0  # a file changed twice within one tick of the file system's clock looks unchanged
_METER_BYTES = 2**30


class Digests:
    """SHA-256 of files, cached on disk."""

    def __init__(self, memory: Path = MEMORY) -> None:
        """Read the cache, a file. A missing or damaged one counts as empty."""
        self._memory = memory
        self._known = _read(memory)
        self._learnt = False

    def of(self, path: str | Path, chosen: Callable[[Path], bool] = lambda path: True) -> str | None:
        """Digest of a file's content, or of the names and contents of a folder's files; None if `path` does not exist.

        Links are followed, hidden files of a folder skipped; `chosen` filters them, called with the path relative to
        it. DataError if a file cannot be read, or is tracked by DVC and missing.
        """
        path = Path(path)
        try:
            if path.is_dir():
                return self._of_folder(path, chosen)
            if path.is_file():
                return self._of_file(path)
            _require_untracked(path)
        except OSError as error:
            raise DataError(f"{error.filename or path}: cannot be read ({error.strerror})") from error
        return None

    def save(self) -> None:
        """Write new digests to the cache; DataError if it cannot be written."""
        if not self._learnt:
            return
        try:
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._memory.parent) as folder:
                draft = Path(folder, self._memory.name)
                there = {path: known for path, known in self._known.items() if Path(path).exists()}
                draft.write_text(json.dumps(there), encoding="utf-8")
                draft.replace(self._memory)
        except OSError as error:
            raise DataError(f"{self._memory}: cannot be written ({error.strerror})") from error
        self._learnt = False

    def _of_folder(self, folder: Path, chosen: Callable[[Path], bool]) -> str:
        files = [path for path in _files(folder) if chosen(path.relative_to(folder))]
        unread = sum(path.stat().st_size for path in files if self._remembered(path) is None)
        digest = hashlib.sha256()
        with Meter(f"reading {folder}", len(files)) if unread > _METER_BYTES else nullcontext() as meter:
            for path in files:
                name = path.relative_to(folder).as_posix()
                digest.update(json.dumps([name, self._of_file(path)]).encode())
                if meter is not None:
                    meter.advance()
        return digest.hexdigest()

    def _of_file(self, path: Path) -> str:
        remembered = self._remembered(path)
        if remembered is not None:
            return remembered
        before = _stat(path)
        found = _sha256(path)
        if _stat(path) == before and time.time() - max(before[1:3]) / 1e9 > _SETTLED_SECONDS:
            self._known[str(path.resolve())] = [before, found]
            self._learnt = True
        return found

    def _remembered(self, path: Path) -> str | None:
        known = self._known.get(str(path.resolve()))
        return str(known[1]) if known is not None and known[0] == _stat(path) else None


def hub_commit(kind: str, repository: str, revision: str | None) -> str | None:
    """The commit of a revision of "models" or "datasets" in the hub's cache; not downloaded, the revision itself."""
    from huggingface_hub.constants import HF_HUB_CACHE  # here: only inputs of the hub need the package

    reference = Path(HF_HUB_CACHE, f"{kind}--{repository.replace('/', '--')}", "refs", revision or "main")
    return reference.read_text().strip() if reference.is_file() else revision


def _require_untracked(path: Path) -> None:
    """Require that no file of `dvc add` tracks a missing path, or a folder above it."""
    for each in (path, *path.parents):
        marker = each.parent / f"{each.name}.dvc"
        if each.name and marker.is_file():
            raise DataError(
                f"{path}: no such file, but {marker} tracks it. In a checkout run `dvc checkout {marker}` (`dvc pull` "
                "fetches it from the remote). A copy of the checkout lacks such files: `dvc exp run --temp` and "
                f"`--queue` take them along with `--copy-paths {each}`; for flows commit the file, or name it by "
                "an absolute path"
            )


def _read(memory: Path) -> dict[str, list[Any]]:
    try:
        found = json.loads(memory.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _files(folder: Path) -> Iterator[Path]:
    """All files below a folder, sorted by path, without hidden ones and __pycache__."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def _stat(path: Path) -> list[int]:
    """Size, times and inode. Unlike the modification time, the inode's change time cannot be set by a program."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
