"""Copies of a training's newest checkpoint in an object store or another folder.

A training that lost its machine resumes from them on another one. Copies have the names of the files in the folder of
checkpoints. The main process copies them in the background, each in one step, and the manifest last. So a checkpoint
that was copied in part has no manifest, or its manifest names a file that is missing. Older copies are removed after a
newer one was copied.

Whoever can write there can replace files and checksums together, and so change weights; but files are read as JSON and
safetensors only.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path

from chunk_grpo.artifacts import storage
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.state_files import MANIFEST, is_ours, make_folder

_NAME = re.compile(r"iteration-([0-9]{6}|[1-9][0-9]{6,})(?:-([1-9][0-9]*))?")

_logger = logging.getLogger(__name__)


def order_of(path: str | Path) -> tuple[int, int]:
    """Iteration of a checkpoint, and how often it was saved before; (-1, 0) for other names."""
    match = _NAME.fullmatch(Path(path).name)
    return (-1, 0) if match is None else (int(match[1]), int(match[2] or 0))


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
        self._failure, self._sent = "", ""

    def start(self, name: str) -> None:
        """Begin to copy the checkpoint in the folder `name`, after `settle`."""

        def send() -> None:
            for path in sorted((self._folder / name).iterdir(), key=lambda path: path.name == MANIFEST):
                storage.put_file(path, storage.join(self._location, name, path.name))

        def run() -> None:
            self._failure = _failure_of(send)

        if self._processes.is_main:
            self._sent = name
            self._thread = threading.Thread(target=run, name="copies", daemon=True)
            self._thread.start()

    def is_done(self) -> bool:
        """Whether this process copies nothing. One process may call it alone."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until this process copies nothing. One process may call it alone."""
        if self._thread is not None:
            self._thread.join()

    def settle(self) -> None:
        """Wait until no process copies anything; then remove older copies. A failure is logged as a warning."""
        failures = [text for text in self._processes.by_all(self._finished) if text]
        if failures:
            self._sent = ""  # older copies are still needed
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
        """Remove copies that are older than the one just made, if one was; why that failed, or ""."""
        sent, self._sent = self._sent, ""

        def is_older(name: str) -> bool:
            return name != sent and 0 <= order_of(name)[0] <= order_of(sent)[0]

        return _failure_of(lambda: _remove(self._location, is_older))

    def found(self) -> dict[str, str]:
        """Names of the copied checkpoints, with their locations. One process may call it alone.

        Raises:
            DataError: The copies cannot be listed.
            TransientError: The store does not answer.
        """
        folders = [folder for folder, file in _files_at(self._location) if file == MANIFEST]
        return {name: storage.join(self._location, name) for name in folders if order_of(name)[0] >= 0}

    def fetch(self, name: str) -> None:
        """Bring a checkpoint to the folder.

        The manifest gets another name, which is changed when all files are verified. What is left of a checkpoint that
        was refused is removed by the next save.

        Args:
            name: Folder of the checkpoint.

        Raises:
            DataError: The files cannot be read or written.
            TransientError: The store does not answer.
        """
        path = self._folder / name

        def get() -> None:
            with storage.storage_errors("write", path):
                make_folder(path)
                (path / MANIFEST).unlink(missing_ok=True)
            files = [file for folder, file in _files_at(self._location) if folder == name and is_ours(file)]
            for file in files:
                storage.get_file(storage.join(self._location, name, file), path / file)
            storage.get_file(storage.join(self._location, name, MANIFEST), path / f"{MANIFEST}.partial")

        self._processes.by_main(get)


def remove_copies(location: str) -> None:
    """Remove the copies of a finished run; a failure is logged as a warning."""
    if reason := _failure_of(lambda: _remove(location, lambda name: True)):
        _logger.warning("%s: the copies of a finished training are not removed (%s); remove them", location, reason)


def _remove(location: str, is_meant: Callable[[str], bool]) -> None:
    """Remove copies by the names of their folders; of each the manifest first."""
    for folder, file in sorted(_files_at(location), key=lambda each: each[1] != MANIFEST):
        if is_meant(folder):
            storage.remove_file(storage.join(location, *folder.split("/"), file))


def _files_at(location: str) -> list[tuple[str, str]]:
    """Folders, relative to the location, and names of the files there."""
    return [name.rpartition("/")[::2] for name in storage.sizes_below(location)]


def _failure_of(action: Callable[[], None]) -> str:
    """Why an action failed, or ""; training continues after any failure of a store."""
    try:
        action()
    except Exception as error:
        return str(error) or type(error).__name__
    return ""
