"""Checkpoints of a training run: one file per iteration, written atomically and verified before use.

A kill at any moment leaves the older files intact: a new file is written under a temporary name, synced to disk and
then renamed. Older files are removed last.

A file is the output of torch.save plus a checksum of all its bytes. torch.load does not verify the checksums of the
zip archive: after a single flipped bit in the archive's table it returns uninitialised memory.

Sharded tensors are in a folder beside the file; each process writes its part. The file names the folder and has the
checksums of its files and the places of the tensors in them, so there is a checkpoint if and only if the file is there.

Machines without a common disk have such a folder each, with their processes' parts. The file is on machine 0 alone;
it is copied to the others when training resumes.

`copies` keeps copies elsewhere, for a training that resumes on another machine.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.distributed.tensor import DTensor

from chunk_grpo.errors import DataError
from chunk_grpo.training.checkpoint_files import (
    CHECKPOINT,
    FORMAT,
    PARTIAL,
    SHARDS,
    Shards,
    Tensors,
    UnusableError,
    check,
    damaged,
    file_name,
)
from chunk_grpo.training.copies import Copies
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.sealing import (
    checksum_of,
    find_not_plain,
    make_folder,
    os_error,
    seal,
    sync_folder,
)
from chunk_grpo.training.sharded_files import with_stored, without_sharded, write_sharded

T = TypeVar("T")

_logger = logging.getLogger(__name__)


@dataclass
class TrainingState:
    """State that resumes a run. Random streams are functions of the iteration and have no state."""

    iteration: int
    """Number of completed iterations, >= 0."""
    network: dict[str, Any]
    """State dict of the trained weights: the whole policy, or the adapter alone. Here and below, tensors may be
    sharded; a loaded state has a `StoredTensor` in their place."""
    optimizer: dict[str, Any]
    """State dict of the optimiser."""
    rows: list[tuple[int, str, float]]
    """Metric rows (iteration, metric, value) so far."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Other plain values and tensors by name, such as averaged weights or a chunk plan; {} if unused."""


class CheckpointStore:
    """The checkpoints of one run in one folder. Files with other names are ignored."""

    def __init__(
        self,
        folder: Path,
        identity: str,
        keep: int,
        processes: Processes | None = None,
        copies: Copies | None = None,
    ) -> None:
        """Set the folder. The first `save` creates it.

        Args:
            folder: Folder of this run's checkpoints, not shared with other runs.
            identity: Name of the computation (code, parameters, inputs). Checkpoints with another identity are refused.
            keep: Number of checkpoints that are kept, >= 1.
            processes: Processes that all call `save` and `latest`; None: one process calls them.
            copies: Copies of the newest checkpoint; None: there are none.

        Raises:
            ValueError: `keep` is below 1.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self._folder, self._identity, self._keep, self._copies = folder, identity, keep, copies
        self._processes = processes if processes is not None and processes.count > 1 else None
        # With hybrid sharding every machine holds all parts, and the first one writes them.
        together = self._processes
        self._writes_shards = together is None or together.index == together.place[0]
        self._refused: set[Path] = set()  # not counted by `keep`: bad files must not displace good ones

    def save(self, state: TrainingState, *, copied: bool = True) -> None:
        """Write `state`; remove checkpoints beyond `keep` and partial files of killed saves.

        Args:
            state: State to write.
            copied: Whether to begin to copy the checkpoint, if there are copies.

        Raises:
            DataError: The disk is full or not writable. The older checkpoints remain.
            TypeError: `state` holds a value that loading would refuse.
            ValueError: The iteration is negative.
        """
        path = self._folder / file_name(state.iteration)
        sharded: dict[str, DTensor] = {}
        plain = without_sharded(vars(state), sharded)
        if found := find_not_plain(plain):
            raise TypeError(
                f"{path}: state{found}, must be a plain value, a tensor, or a dict, list or tuple of these"
            )
        if self._copies is not None:
            self._copies.settle()
        folder = self._by_main(lambda: self._prepare(path, state.iteration))
        shards = self._write_shards(sharded, path, folder) if sharded else None
        self._by_main(lambda: self._write(path, state.iteration, plain, shards))
        if self._copies is not None and copied:
            self._copies.start(state.iteration)

    def _prepare(self, path: Path, iteration: int) -> str:
        """Remove the remains of killed saves; return a new name for the folder of sharded tensors."""
        with self._writing(path):
            make_folder(self._folder)
            for _, leftover in self._files(PARTIAL):
                leftover.unlink()
            whole = {number for number, _ in self._files(CHECKPOINT)}
            for number, leftover in self._files(SHARDS):
                if number not in whole:
                    shutil.rmtree(leftover)
        used = [
            int(path.name.rpartition("-")[2]) for number, path in self._files(SHARDS) if number == iteration
        ]
        return f"{path.stem}.shards-{max(used, default=0) + 1}"

    def _write_shards(self, sharded: dict[str, DTensor], path: Path, name: str) -> Shards:
        """Write each process's part of the sharded tensors, and read it again for its checksums."""
        folder, processes = self._folder / name, self._processes
        tensors: Tensors = {}

        def write() -> list[tuple[str, str]]:
            if not self._writes_shards:
                return []
            with self._writing(path):
                make_folder(self._folder)
                tensors.update(write_sharded(sharded, folder, processes.sharing if processes else None))
                if processes is None or processes.is_main:
                    sync_folder(folder)
                    sync_folder(self._folder)
                own = _share_of([file.name for file in folder.iterdir()], processes)
                return [(name, checksum_of(folder / name)) for name in own]

        checksums = dict(sorted(self._by_all(write)))
        return {"folder": name, "checksums": checksums, "tensors": tensors}

    def _write(self, path: Path, iteration: int, plain: dict[str, Any], shards: Shards | None) -> None:
        """Write the sealed file; remove what is no longer kept."""
        partial = path.with_name(path.name + ".partial")
        content = {"format": FORMAT, "identity": self._identity, "state": plain, "shards": shards}
        with self._writing(path, partial):
            with partial.open("w+b") as stream:
                torch.save(content, stream)
                seal(stream)
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(path)
            sync_folder(self._folder)
            self._refused.discard(path)
            self._remove_older_than(iteration)
            self._remove_shards(iteration, None if shards is None else shards["folder"])

    @contextmanager
    def _writing(self, path: Path, partial: Path | None = None) -> Iterator[None]:
        """Context that reports an OSError of the block as DataError, and removes `partial` after a failure."""
        try:
            yield
        except Exception as error:
            if partial is not None:
                with suppress(OSError):
                    partial.unlink(missing_ok=True)
            cause = os_error(error)
            if cause is None:
                raise
            raise DataError(
                f"{path}: the checkpoint cannot be saved ({cause.strerror or cause}). Make room in {self._folder} or "
                "make it writable, then run again: training resumes from the newest checkpoint there."
            ) from error

    def _by_all(self, action: Callable[[], Iterable[T]]) -> list[T]:
        found = [action()] if self._processes is None else self._processes.by_all(action)
        return [item for part in found for item in part]

    def _by_main(self, action: Callable[[], T]) -> T:
        return action() if self._processes is None else self._processes.by_main(action)

    def latest(self, last: int | None = None) -> TrainingState | None:
        """The newest intact checkpoint of this computation, with tensors on the CPU; None without any checkpoint.

        A copy that is newer is brought to the folder. Logs a warning for each newer checkpoint that is refused.
        Removes nothing.

        Args:
            last: Largest iteration of a checkpoint; None: no limit.

        Raises:
            DataError: All checkpoints in the folder and all copies are refused, or the folder cannot be read.
            TransientError: The store of the copies does not answer.
        """
        refused: dict[Path, str] = {}
        for iteration, source in self._by_main(lambda: self._candidates(last)):
            path = self._folder / file_name(iteration)
            try:
                if isinstance(source, str) and self._copies is not None:
                    self._copies.fetch(iteration, self._checked)
                state = self._read(path, iteration)
            except UnusableError as error:
                if isinstance(source, str):
                    _logger.warning("%s: %s; this copy is not used", source, error)
                else:
                    refused[path] = str(error)
                continue
            if isinstance(source, str) and path not in refused:
                _logger.warning(
                    "%s: newer than the checkpoints in %s, so training resumes from this copy",
                    source,
                    self._folder,
                )
            for bad, reason in refused.items():
                _logger.warning("%s: %s; %s is used instead", bad, reason, source)
            self._refused = set(refused) - {path}
            return state
        if refused:
            reasons = "; ".join(f"{bad}: {reason}" for bad, reason in refused.items())
            raise DataError(f"{reasons}; delete {self._folder} to train from the start")
        return None

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Context of the use of a loaded state: one that does not fit the training is a DataError."""
        try:
            yield
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise DataError(
                f"{self.newest_path()}: its values do not fit this training ({error!r}); delete {self._folder}, and "
                "its copies if there are any, to train from the start"
            ) from error

    def _candidates(self, last: int | None) -> list[tuple[int, Path | str]]:
        """Iterations with the file, or the location of a copy; the newest first, and a file before its copy."""
        found: list[tuple[int, Path | str]] = [*self._files(CHECKPOINT)]
        found += [] if self._copies is None else self._copies.found()
        found.sort(key=lambda each: (each[0], isinstance(each[1], Path)), reverse=True)
        return [each for each in found if last is None or each[0] <= last]

    def wait_for_copies(self) -> None:
        """Wait until this process copies nothing."""
        if self._copies is not None:
            self._copies.wait()

    def settle_copies(self) -> None:
        """Wait until no process copies anything, and remove older copies."""
        if self._copies is not None:
            self._copies.settle()

    def newest_path(self) -> Path | None:
        """The newest checkpoint by name, for messages. Skips those that `latest` refused; does not read the file."""
        paths = [path for _, path in self._files(CHECKPOINT) if path not in self._refused]
        return paths[-1] if paths else None

    def _files(self, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
        """Files of one kind with their iteration, oldest first."""
        try:
            found = [(pattern.fullmatch(path.name), path) for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataError(
                f"{self._folder}: the folder of checkpoints cannot be read ({error.strerror})"
            ) from error
        return sorted((int(match[1]), path) for match, path in found if match)

    def _remove_older_than(self, iteration: int) -> None:
        """Remove checkpoints beyond `keep`, counted back from the one of `iteration`."""
        files = [(number, path) for number, path in self._files(CHECKPOINT) if number <= iteration]
        oldest_kept = [number for number, path in files if path not in self._refused][-self._keep :][0]
        for number, path in files:
            if number < oldest_kept:
                path.unlink()

    def _remove_shards(self, iteration: int, newest: str | None) -> None:
        """Remove the folders of sharded tensors without a checkpoint.

        Args:
            iteration: Iteration of the checkpoint that was just written.
            newest: Folder of that checkpoint.
        """
        whole = {number for number, _ in self._files(CHECKPOINT)}
        for number, path in self._files(SHARDS):
            if number not in whole or (number == iteration and path.name != newest):
                shutil.rmtree(path)

    def _read(self, path: Path, iteration: int) -> TrainingState:
        """Load the state in `path`.

        Args:
            path: File to load.
            iteration: Iteration in the file's name.

        Raises:
            UnusableError: A file is damaged, belongs to another computation, or contradicts its name.
        """
        reason, shards = self._by_main(lambda: self._checked(path, iteration))
        if reason:
            raise UnusableError(reason)
        if shards is not None:
            folder, sums = self._folder / shards["folder"], shards["checksums"]
            own = _share_of(list(sums), self._processes)
            if bad := self._by_all(lambda: damaged(folder, [(name, sums[name]) for name in own])):
                raise UnusableError(f"{folder.name}/{bad[0]} is missing or damaged (its checksum is wrong)")
        # Mapped, so that processes on one machine share the memory.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return TrainingState(**with_stored(content["state"], self._folder, shards))

    def _checked(self, path: Path, iteration: int) -> tuple[str, Shards | None]:
        """Reason to refuse a file, or "", and the description of its sharded tensors."""
        try:
            names = [entry.name for entry in fields(TrainingState)]
            return "", check(path, iteration, self._identity, names)
        except UnusableError as error:
            return str(error), None


def _share_of(names: Sequence[str], processes: Processes | None) -> list[str]:
    """Files of sharded tensors that this process checks: those that it wrote, if there are as many processes as then.

    torch.distributed.checkpoint names the file after the process.
    """
    if processes is None:
        return list(names)
    index, count = processes.place
    return [name for name in names if int(name.split("_")[2]) % count == index]
