"""Checkpoints of a training run: one file per iteration, written atomically and verified before use.

A kill at any moment leaves the older files intact: a new file is written under a temporary name, synced to disk and
then renamed. Older files are removed last.

A file is the output of torch.save plus a checksum of all its bytes. torch.load does not verify the checksums of the
zip archive: after a single flipped bit in the archive's table it returns uninitialised memory.
"""

from __future__ import annotations

import logging
import os
import re
import zlib
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

import torch

from chunk_grpo.errors import DataError

FORMAT = "chunk_grpo.training/2"

_CHECKPOINT = re.compile(r"iteration-([0-9]{6}|[1-9][0-9]{6,})\.pt")
_PARTIAL = re.compile(_CHECKPOINT.pattern + r"\.partial")
_CHECKSUM_DIGITS = 8
_PLAIN = (type(None), bool, int, float, str, bytes, torch.Tensor, torch.nn.Parameter)

_logger = logging.getLogger(__name__)


@dataclass
class TrainingState:
    """State that resumes a run. Random streams are functions of the iteration and have no state.

    Attributes:
        iteration: Number of completed iterations, >= 0.
        network: State dict of the trained weights: the whole policy, or the adapter alone.
        optimizer: State dict of the optimiser.
        rows: Metric rows (iteration, metric, value) so far.
        extra: Other plain values and tensors by name, such as averaged weights or a chunk plan; {} if unused.
    """

    iteration: int
    network: dict[str, Any]
    optimizer: dict[str, Any]
    rows: list[tuple[int, str, float]]
    extra: dict[str, Any] = field(default_factory=dict)


class CheckpointStore:
    """The checkpoints of one run in one folder. Files with other names are ignored."""

    def __init__(self, folder: Path, identity: str, keep: int) -> None:
        """Set the folder. The first `save` creates it.

        Args:
            folder: Folder of this run's checkpoints, not shared with other runs.
            identity: Name of the computation (code, parameters, inputs). Checkpoints with another identity are refused.
            keep: Number of checkpoints that are kept, >= 1.

        Raises:
            ValueError: `keep` is below 1.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self._folder, self._identity, self._keep = folder, identity, keep
        self._refused: set[Path] = set()  # not counted by `keep`: bad files must not displace good ones

    def save(self, state: TrainingState) -> None:
        """Write `state`; remove checkpoints beyond `keep` and partial files of killed saves.

        Raises:
            DataError: The disk is full or not writable. The older checkpoints remain.
            TypeError: `state` holds a value that loading would refuse.
            ValueError: The iteration is negative.
        """
        path = self._folder / _file_name(state.iteration)
        if found := _find_not_plain(vars(state)):
            raise TypeError(
                f"{path}: state{found}, must be a plain value, a tensor, or a dict, list or tuple of these"
            )
        partial = path.with_name(path.name + ".partial")
        try:
            _make_folder(self._folder)
            for _, leftover in self._files(_PARTIAL):
                leftover.unlink()
            with partial.open("w+b") as stream:
                torch.save({"format": FORMAT, "identity": self._identity, "state": vars(state)}, stream)
                _seal(stream)
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(path)
            _sync_folder(self._folder)
            self._refused.discard(path)
            self._remove_older_than(state.iteration)
        except Exception as error:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            cause = _os_error(error)
            if cause is None:
                raise
            raise DataError(
                f"{path}: the checkpoint cannot be saved ({cause.strerror or cause}). Make room in {self._folder} or "
                "make it writable, then run again: training resumes from the newest checkpoint there."
            ) from error

    def latest(self) -> TrainingState | None:
        """The newest intact checkpoint of this computation, with tensors on the CPU; None without any checkpoint.

        Logs a warning for each newer checkpoint that is refused. Removes nothing.

        Raises:
            DataError: All checkpoints are refused, or the folder cannot be read.
        """
        refused: dict[Path, str] = {}
        for iteration, path in reversed(self._files(_CHECKPOINT)):
            try:
                state = self._read(path, iteration)
            except _RefusedError as error:
                refused[path] = str(error)
                continue
            for bad, reason in refused.items():
                _logger.warning("%s: %s; %s is used instead", bad, reason, path)
            self._refused = set(refused)
            return state
        if refused:
            reasons = "; ".join(f"{bad}: {reason}" for bad, reason in refused.items())
            raise DataError(f"{reasons}; delete {self._folder} to train from the start")
        return None

    def newest_path(self) -> Path | None:
        """The newest checkpoint by name, for messages. Skips those that `latest` refused; does not read the file."""
        paths = [path for _, path in self._files(_CHECKPOINT) if path not in self._refused]
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
        files = [(number, path) for number, path in self._files(_CHECKPOINT) if number <= iteration]
        oldest_kept = [number for number, path in files if path not in self._refused][-self._keep :][0]
        for number, path in files:
            if number < oldest_kept:
                path.unlink()

    def _read(self, path: Path, iteration: int) -> TrainingState:
        """Load the state in `path`.

        Args:
            path: File to load.
            iteration: Iteration in the file's name.

        Raises:
            _RefusedError: The file is damaged, belongs to another computation, or contradicts its name.
        """
        try:
            whole = _is_whole(path)
        except OSError as error:
            raise _RefusedError(f"cannot be read ({error.strerror})") from error
        if not whole:
            raise _RefusedError("damaged or not a checkpoint (its checksum is missing or wrong)")
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load raises many types
            line = next(iter(str(error).splitlines()), type(error).__name__)
            raise _RefusedError(f"not a readable checkpoint ({line})") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise _RefusedError(f"not a checkpoint of the format {FORMAT}")
        if content.get("identity") != self._identity:
            raise _RefusedError(
                f"of another computation (its identity is {content.get('identity')!r}, not {self._identity!r})"
            )
        state = content.get("state")
        if not isinstance(state, dict) or set(state) != {entry.name for entry in fields(TrainingState)}:
            raise _RefusedError(f"does not hold the fields of the format {FORMAT}")
        if state["iteration"] != iteration:
            raise _RefusedError(f"holds iteration {state['iteration']!r}, which does not match its name")
        return TrainingState(**state)


class _RefusedError(Exception):
    """A checkpoint cannot be used; the message is the reason."""


def _file_name(iteration: int) -> str:
    """File name of a checkpoint, with at least six digits."""
    if iteration < 0:
        raise ValueError(f"iteration must be at least 0, got {iteration}")
    return f"iteration-{iteration:06d}.pt"


def _seal(stream: BinaryIO) -> None:
    """Append the checksum of the bytes in `stream`, as the comment at the end of a zip archive.

    The last two bytes of an archive are the length of its comment; torch.save leaves 0 there.
    """
    stream.seek(-2, os.SEEK_END)
    stream.write(_CHECKSUM_DIGITS.to_bytes(2, "little"))
    size = stream.tell()
    checksum = _checksum(stream, size)
    stream.seek(size)
    stream.write(checksum)


def _is_whole(path: Path) -> bool:
    """Whether the file ends with the checksum of the bytes before it."""
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END) - _CHECKSUM_DIGITS
        return _checksum(stream, size) == stream.read()


def _checksum(stream: BinaryIO, size: int) -> bytes:
    """CRC-32 of the first `size` bytes in hexadecimal; leaves `stream` at position `size`."""
    checksum = 0
    stream.seek(0)
    while size > 0 and (block := stream.read(min(size, 2**20))):
        checksum = zlib.crc32(block, checksum)
        size -= len(block)
    return f"{checksum:0{_CHECKSUM_DIGITS}x}".encode()


def _find_not_plain(value: object) -> str | None:
    """Location and type of a value that torch.load(weights_only=True) may refuse; None if there is none.

    Types are compared exactly: numpy.float64 is a subclass of float that can be saved but not loaded.
    """
    items: list[tuple[object, object]] = []
    if type(value) in (dict, OrderedDict):
        items = list(value.items())  # type: ignore[attr-defined]  # mypy does not narrow by `in`
    elif type(value) in (list, tuple):
        items = list(enumerate(value))  # type: ignore[arg-type]  # likewise
    elif type(value) not in _PLAIN:
        return f" is of type {type(value).__name__}"
    for key, item in items:
        if type(key) not in (str, int):
            return f" has the key {key!r}, which is not a str or int"
        if found := _find_not_plain(item):
            return f"[{key!r}]{found}"
    return None


def _make_folder(folder: Path) -> None:
    """Create a folder that survives a loss of power."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Sync the folder's directory entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _os_error(error: BaseException | None) -> OSError | None:
    """The OSError in the chain of `error`: torch.save raises RuntimeError when the disk is full."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error
