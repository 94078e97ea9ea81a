"""Files with a checksum of all their bytes, plain content and entries that survive a loss of power."""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO

import torch

_CHECKSUM_DIGITS = 8
_PLAIN = (type(None), bool, int, float, str, bytes, torch.Tensor, torch.nn.Parameter)


def seal(stream: BinaryIO) -> None:
    """Append the checksum of the bytes in `stream`, as the comment at the end of a zip archive.

    The last two bytes of an archive are the length of its comment; torch.save leaves 0 there.
    """
    stream.seek(-2, os.SEEK_END)
    stream.write(_CHECKSUM_DIGITS.to_bytes(2, "little"))
    size = stream.tell()
    checksum = _checksum(stream, size)
    stream.seek(size)
    stream.write(checksum)


def checksum_of(path: Path) -> str:
    """CRC-32 of a file in hexadecimal."""
    with path.open("rb") as stream:
        return _checksum(stream, path.stat().st_size).decode()


def is_whole(path: Path) -> bool:
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


def find_not_plain(value: object) -> str | None:
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
        if found := find_not_plain(item):
            return f"[{key!r}]{found}"
    return None


def make_folder(folder: Path) -> None:
    """Create a folder that survives a loss of power."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the folder's directory entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def os_error(error: BaseException | None) -> OSError | None:
    """The OSError in the chain of `error`: torch.save raises RuntimeError when the disk is full."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error
