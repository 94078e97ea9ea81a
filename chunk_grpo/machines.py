"""Files on the machines that share a stage: on one disk that all see, or on a disk of each."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunk_grpo.errors import DataError, TransientError
from chunk_grpo.parallel import results_of_all

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_BLOCK = 2**26
"""Bytes of a file that are sent at once."""


def send_files(paths: Iterable[str | Path], group: ProcessGroup | None = None) -> None:
    """Copy files of machine 0 to the machines that do not see them or see others. All processes must call.

    Nothing is sent where all machines share a disk, or one machine does the work. A file is taken for the same if its
    size and time of modification are.

    Args:
        paths: Files and folders, equal in all processes; relative ones are relative to each process's folder.
        group: Processes, over gloo; None: the default group.

    Raises:
        DataError: A machine cannot read or write a file.
        TransientError: Another process has ended.
    """
    count, place = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    if count == int(os.environ.get("LOCAL_WORLD_SIZE", count)):
        return
    is_source, receives = os.environ["RANK"] == "0", place == 0
    (present, *_) = results_of_all(lambda: _files_of(paths) if is_source else [], count, group)
    lacking = results_of_all(
        lambda: [number for number, file in enumerate(present) if receives and not file.is_here()],
        count,
        group,
    )
    own = set(lacking[int(os.environ["RANK"])])
    for number in sorted({number for part in lacking for number in part}):
        _send(present[number], is_source, number in own, count, group)


def owns_disk(folder: Path, group: ProcessGroup | None = None) -> bool:
    """Whether this process is the first of those that see this folder. All processes must call.

    With a disk that all machines share it is process 0 alone; else it is the first process of each disk.

    Args:
        folder: Folder that is equal in all processes; it is created.
        group: Processes, over gloo; None: the default group.

    Raises:
        DataError: A process cannot write there.
        TransientError: Another process has ended.
    """
    count, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", count))
    if count == local:
        return rank == 0
    name, *_ = results_of_all(lambda: f".disk-{uuid.uuid4().hex}", count, group)
    probe, is_owner = folder / name, False
    try:
        for first in range(0, count, local):

            def claim(first: int = first) -> bool:
                if rank != first or probe.exists():
                    return False
                with _written(probe):
                    folder.mkdir(parents=True, exist_ok=True)
                    probe.touch()
                return True

            is_owner |= results_of_all(claim, count, group)[rank]
    finally:
        if is_owner:
            probe.unlink()
    return is_owner


@dataclass(frozen=True)
class _File:
    """A file of machine 0: path, size in bytes and time of modification in ns."""

    path: str
    size: int
    time: int

    def is_here(self) -> bool:
        """Whether this machine has the same file."""
        try:
            found = Path(self.path).stat()
        except OSError:
            return False
        return (found.st_size, found.st_mtime_ns) == (self.size, self.time)


def _files_of(paths: Iterable[str | Path]) -> list[_File]:
    """The files, and those in the folders, that exist."""
    found = [Path(path) for path in paths]
    files = [file for path in found for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    stats = [(str(file), file.stat()) for file in files if file.is_file()]
    return [_File(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def _send(file: _File, is_source: bool, is_wanted: bool, count: int, group: ProcessGroup | None) -> None:
    """Copy one file to the processes that want it; each writes it under another name first."""
    import torch  # here: slow to import
    from torch import distributed

    path = Path(file.path)
    partial = path.with_name(f"{path.name}.partial")

    def by_each(step: Callable[[], object]) -> None:
        def described() -> None:
            with _written(path):
                step()

        results_of_all(described, count, group)

    with ExitStack() as streams:
        stream: Any = None

        def begin() -> None:
            nonlocal stream
            if is_wanted:
                path.parent.mkdir(parents=True, exist_ok=True)
            if is_source or is_wanted:
                stream = streams.enter_context(path.open("rb") if is_source else partial.open("wb"))

        by_each(begin)
        for start in range(0, file.size, _BLOCK):
            block = torch.empty(min(_BLOCK, file.size - start), dtype=torch.uint8)
            by_each(lambda block=block: stream.readinto(block.numpy()) if is_source else None)  # type: ignore[misc]
            try:
                distributed.broadcast(block, src=0, group=group)
            except RuntimeError as error:
                raise TransientError("another process has ended") from error
            by_each(lambda block=block: stream.write(block.numpy()) if is_wanted else None)  # type: ignore[misc]

    def keep() -> None:
        if is_wanted:
            os.utime(partial, ns=(file.time, file.time))
            partial.replace(path)

    by_each(keep)


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Report an OSError of the block as DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path}: cannot be copied from machine 0 to the others ({error.strerror}). Make room there, or use a disk "
            "that all machines share"
        ) from error
