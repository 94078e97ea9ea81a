"""Copies of a training's newest checkpoint in an object store or another folder.

A training that lost its machine resumes from them on another one. Copies have the names of the files in the folder of
checkpoints. The main process copies them in the background, each in one step, and the checkpoint's own file last; it
names the files of sharded tensors. So a checkpoint that was copied in part has no such file, or names a file that is
missing. Older copies are removed after a newer one was copied.

Files have checksums (`sealing`), which are verified before a copy is used. They find damage. Whoever can write there
can replace files and checksums together, and so change weights; but files are read as plain values only.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from chunk_grpo.artifacts import storage
from chunk_grpo.errors import DataError
from chunk_grpo.training.checkpoint_files import (
    BEST,
    CHECKPOINT,
    Shards,
    UnusableError,
    damaged,
    file_name,
    iteration_of,
)
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.sealing import is_whole, make_folder

_logger = logging.getLogger(__name__)


class Copies:
    """Copies of the checkpoints in one folder. All processes call the methods, except where they say otherwise."""

    def __init__(self, location: str, folder: Path, processes: Processes) -> None:
        """Copy nothing yet.

        Args:
            location: Folder or URL of the copies, not shared with other runs.
            folder: Folder of the checkpoints.
            processes: Processes of the training.
        """
        self._location, self._folder, self._processes = location, folder, processes
        self._thread: threading.Thread | None = None
        self._failure = ""
        self._sent: list[str] = []

    def start(self, iteration: int) -> None:
        """Begin to copy the checkpoint of an iteration, after `settle`."""
        if not self._processes.is_main:
            return
        parts = sorted(self._folder.glob(f"{Path(file_name(iteration)).stem}.shards-*/*"))
        parts += [*sorted((self._folder / BEST).glob("*.pt")), self._folder / file_name(iteration)]
        self._sent = [path.relative_to(self._folder).as_posix() for path in parts]
        self._thread = threading.Thread(target=self._send, name="copies", daemon=True)
        self._thread.start()

    def _send(self) -> None:
        def send() -> None:
            for name in self._sent:
                storage.put_file(self._folder / name, self._place(name))

        self._failure = _failure_of(send)

    def wait(self) -> None:
        """Wait until this process copies nothing. One process may call it alone."""
        if self._thread is not None:
            self._thread.join()

    def settle(self) -> None:
        """Wait until no process copies anything; then remove older copies. A failure is logged as a warning."""
        failures = [text for text in self._processes.by_all(self._finished) if text]
        if failures:
            self._sent = []  # older copies are still needed
        else:
            failures = [text for text in [self._processes.by_main(self._remove_older)] if text]
        for text in failures:
            _logger.warning(
                "%s: the newest checkpoint is not copied, or older copies are not removed (%s); training continues, "
                "and the next checkpoint is copied again",
                self._location,
                text,
            )

    def _finished(self) -> str:
        """Why the last copying failed, or ""."""
        self.wait()
        failure, self._failure = self._failure, ""
        return failure

    def _remove_older(self) -> str:
        """Remove what the checkpoint copied last does not need; why that failed, or ""."""
        sent, self._sent = self._sent, []
        if not sent:
            return ""
        kept, newest = {_entry(name) for name in sent}, iteration_of(sent[-1])

        def remove() -> None:
            for name in _files_at(self._location):
                if _entry(name) not in kept and 0 <= iteration_of(_entry(name)) <= newest:
                    storage.remove_file(self._place(name))

        return _failure_of(remove)

    def found(self) -> list[tuple[int, str]]:
        """Iterations of the copied checkpoints with their locations. One process may call it alone.

        Raises:
            DataError: The copies cannot be listed.
            TransientError: The store does not answer.
        """
        names = filter(CHECKPOINT.fullmatch, _files_at(self._location))
        return [(iteration_of(name), self._place(name)) for name in names]

    def fetch(self, iteration: int, check: Callable[[Path, int], tuple[str, Shards | None]]) -> None:
        """Bring a checkpoint to the folder.

        A file takes its name last. What is left of a checkpoint that was refused is removed by the next save.

        Args:
            iteration: Iteration of the checkpoint.
            check: Function that returns why the file of an iteration is refused, or "", and its sharded tensors.

        Raises:
            UnusableError: A file is missing or damaged, or belongs to another computation.
            DataError: The files cannot be read or written.
            TransientError: The store does not answer.
        """
        path = self._folder / file_name(iteration)
        best: list[Path] = []

        def fetch_file() -> tuple[str, Shards | None]:
            with storage.storage_errors("write", self._folder):
                make_folder(self._folder / BEST)
            best[:] = [self._folder / name for name in self._best_of(iteration)]
            for each in (*best, path):
                if reason := self._get(each, _partial(each)):
                    return reason, None
            for each in best:
                if not is_whole(_partial(each)):
                    return f"{BEST}/{each.name} is damaged (its checksum is missing or wrong)", None
            return check(_partial(path), iteration)

        reason, shards = self._processes.by_main(fetch_file)
        if shards is not None:
            parts = shards
            reason = self._processes.by_main(lambda: self._fetch_parts(parts))
        if reason:
            raise UnusableError(reason)

        def keep() -> None:
            for each in (*best, path):
                with storage.storage_errors("write", each):
                    _partial(each).replace(each)

        self._processes.by_main(keep)

    def _best_of(self, iteration: int) -> list[str]:
        """Relative names of the best policies that a checkpoint needs. Later ones belong to a later checkpoint."""
        names = [name for name in _files_at(self._location) if name.startswith(f"{BEST}/")]
        return [name for name in names if 0 <= iteration_of(name) <= iteration]

    def _fetch_parts(self, shards: Shards) -> str:
        """Fetch the files of sharded tensors; why they are refused, or ""."""
        folder, checksums = self._folder / shards["folder"], shards["checksums"]
        with storage.storage_errors("write", folder):
            make_folder(folder)
        for name in checksums:
            if reason := self._get(folder / name, folder / name):
                return reason
        bad = damaged(folder, list(checksums.items()))
        return f"{folder.name}/{bad[0]} is damaged (its checksum is wrong)" if bad else ""

    def _get(self, file: Path, path: Path) -> str:
        """Fetch the copy of a file to a path; why the checkpoint is refused, or ""."""
        name = file.relative_to(self._folder).as_posix()
        try:
            storage.get_file(self._place(name), path)
        except DataError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return f"{name} is missing: the checkpoint was copied in part"
            raise
        return ""

    def _place(self, name: str) -> str:
        return storage.join(self._location, *name.split("/"))


def remove_copies(location: str) -> None:
    """Remove the copies of a finished run; a failure is logged as a warning."""

    def remove() -> None:
        for name in _files_at(location):
            storage.remove_file(storage.join(location, *name.split("/")))

    if reason := _failure_of(remove):
        _logger.warning(
            "%s: the copies of a finished training are not removed (%s); remove them", location, reason
        )


def _files_at(location: str) -> list[str]:
    """Relative names of the copied files, in an order of removal: what others need comes after them."""
    return sorted(storage.sizes_below(location), key=lambda name: CHECKPOINT.fullmatch(name) is None)


def _partial(path: Path) -> Path:
    """Path of a file that is not complete."""
    return path.with_name(f"{path.name}.partial")


def _entry(name: str) -> str:
    """File, or folder of sharded tensors, that a copied file belongs to."""
    return name if name.startswith(f"{BEST}/") else name.split("/")[0]


def _failure_of(action: Callable[[], None]) -> str:
    """Why an action failed, or ""; training continues after any failure of a store."""
    try:
        action()
    except Exception as error:
        return str(error) or type(error).__name__
    return ""
