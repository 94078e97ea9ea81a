"""A nested state in the files of one folder: plain values in JSON, tensors in safetensors. Nothing is pickled.

The first process writes plain values and whole tensors. Each process writes its parts of sharded tensors into a file of
its own, and reads the parts that it needs, whatever the number of processes was. Checksums of all files are in a
manifest, which is written last: without it there is no checkpoint. They find damage; they do not prove who wrote.

Files are written here, tensor by tensor, because safetensors' own writer needs all tensors of a file in memory.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from chunk_grpo.artifacts.storage import storage_errors
from chunk_grpo.errors import DataError

FORMAT = "chunk_grpo.training/6"
MANIFEST, STATE, WHOLE, BEST = "manifest.json", "state.json", "tensors.safetensors", "best.safetensors"
PART = re.compile(r"part-([0-9]+)\.safetensors")
"""File of one process's parts of sharded tensors."""

_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip

Box: TypeAlias = tuple[list[int], list[int]]
"""First element and size in each dimension."""

Staged = dict[str, tuple[dict[str, Tensor], dict[str, Box]]]
"""Files that a process writes: tensors by name, and the boxes of sharded ones."""

Written = dict[str, tuple[str, dict[str, Box]]]
"""Files that a process wrote: checksums, and the boxes of sharded tensors."""


class UnusableError(DataError):
    """A checkpoint cannot be used; the message is the reason."""


def encoded(value: Any, tensors: dict[str, Tensor], place: str = "state") -> Any:
    """`value` as JSON, with names in place of tensors.

    Args:
        value: None, bool, int, float, str or tensor, or dict, list or tuple of these.
        tensors: Receives the tensors by name, which is their place.
        place: Where `value` is.

    Raises:
        TypeError: A value, or a key, has another type. numpy.float64, a subclass of float, is refused.
    """
    if isinstance(value, Tensor) and value.dtype in _TYPES:
        tensors[place] = value.detach()
        return {"tensor": place}
    if type(value) in (list, tuple):
        items = [encoded(item, tensors, f"{place}[{n}]") for n, item in enumerate(value)]
        return items if type(value) is list else {"tuple": items}
    if type(value) in (dict, OrderedDict):
        if odd := [key for key in value if type(key) not in (str, int)]:
            raise TypeError(f"{place} has the key {odd[0]!r}, which is not a str or int")
        return {"dict": [[key, encoded(item, tensors, f"{place}[{key!r}]")] for key, item in value.items()]}
    if value is None or type(value) in (bool, int, float, str):
        return value
    kind = f"{value.dtype} tensor" if isinstance(value, Tensor) else type(value).__name__
    raise TypeError(f"{place} is of type {kind}; it must be a plain value, a tensor, or nested ones")


def held(tensor: Tensor) -> tuple[Tensor, Box]:
    """What this process holds of a tensor, and where that is in the tensor."""
    if not isinstance(tensor, DTensor):
        return tensor, ([0] * tensor.ndim, list(tensor.shape))
    (chunk,) = cast(Any, tensor).__create_chunk_list__()
    return tensor.to_local(), (list(chunk.offsets), list(chunk.sizes))


def write_files(folder: Path, staged: Staged) -> Written:
    """Write a process's files; DataError if the disk is full or not writable."""
    found = {}
    with storage_errors("write", folder):
        for file, (tensors, boxes) in staged.items():
            make_folder(folder)  # another machine's may not be seen here yet
            found[file] = (write_tensors(tensors, folder / file), boxes)
        if found:
            sync_folder(folder)
    return found


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> str:
    """Write a safetensors file; return its checksum."""
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # so that all are aligned
    header, end = {}, 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)

    def blocks() -> Iterator[Any]:
        yield len(head).to_bytes(8, "little") + head
        for _, tensor in ordered:
            yield tensor.cpu().contiguous().flatten().view(torch.uint8).numpy()

    return write_file(path, blocks())


def write_file(path: Path, blocks: Iterable[Any]) -> str:
    """Write a file and sync it to the disk; return its checksum, CRC-32 in hexadecimal."""
    checksum = 0
    with path.open("wb") as stream:
        for block in blocks:
            stream.write(block)
            checksum = zlib.crc32(block, checksum)
        stream.flush()
        os.fsync(stream.fileno())
    return f"{checksum:08x}"


def write_manifest(folder: Path, **content: Any) -> None:
    """Write the manifest in one step, which makes the folder a checkpoint."""
    partial = folder / f"{MANIFEST}.partial"
    write_file(partial, [json.dumps({"format": FORMAT, **content}, indent=1).encode()])
    partial.replace(folder / MANIFEST)
    sync_folder(folder)


def read_manifest(path: Path, **expected: Any) -> dict[str, str]:
    """Checksums of the files of a checkpoint.

    Raises:
        UnusableError: The manifest is malformed, has other values than `expected`, or names a file that is not one of
            a checkpoint.
    """
    try:
        content = json.loads(path.read_bytes())
        different = [key for key, value in {"format": FORMAT, **expected}.items() if content[key] != value]
        files = content["files"]
        ours = {STATE, WHOLE} <= files.keys() and all(map(is_ours, files))
    except OSError as error:
        raise UnusableError(f"cannot be read ({error.strerror})") from error
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise UnusableError(f"damaged or not a checkpoint of the format {FORMAT} ({error!r})") from error
    for key in different:
        raise UnusableError(
            f"of another computation (its {key} is {content[key]!r}, not {expected.get(key, FORMAT)!r})"
        )
    if not ours:
        raise UnusableError("does not name the files of a checkpoint")
    return cast(dict[str, str], files)


def is_ours(name: str) -> bool:
    """Whether a checkpoint can have a file of this name, besides its manifest."""
    return name in (STATE, WHOLE, BEST) or PART.fullmatch(name) is not None


def verify(folder: Path, checksums: Mapping[str, str]) -> None:
    """Compare files with their checksums.

    Raises:
        UnusableError: A file is missing, unreadable or damaged.
    """
    for name, expected in checksums.items():
        checksum = 0
        try:
            with (folder / name).open("rb") as stream:
                while block := stream.read(2**20):
                    checksum = zlib.crc32(block, checksum)
        except OSError as error:
            raise UnusableError(f"{name} cannot be read ({error.strerror})") from error
        if expected != f"{checksum:08x}":
            raise UnusableError(f"{name} is damaged (its checksum is wrong)")


def read_state(folder: Path) -> Any:
    """The inverse of `encoded`, with mapped tensors, and a `StoredTensor` in place of each sharded one.

    Raises:
        UnusableError: The files, though they have their checksums, do not hold a state.
    """
    opened = cache(lambda name: safe_open(folder / name, "pt"))

    def decoded(value: Any) -> Any:
        if isinstance(value, list):
            return [decoded(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "tensor" and content in sharded:
            shape, pieces = sharded[content]
            return _Stored(content, torch.Size(shape), dict(pieces), folder, opened)
        kinds: dict[str, Callable[[], Any]] = {
            "tensor": lambda: opened(WHOLE).get_tensor(content),
            "tuple": lambda: tuple(map(decoded, content)),
            "dict": lambda: {key: decoded(item) for key, item in content},
        }
        return kinds[kind]()

    try:
        content = json.loads((folder / STATE).read_bytes())
        sharded = content["sharded"]
        return decoded(content["state"])
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError, SafetensorError) as error:
        raise UnusableError(f"does not hold a state of the format {FORMAT} ({error!r})") from error


@dataclass(frozen=True)
class _Stored:
    """A sharded tensor in the files of several processes, each with a piece of it."""

    name: str
    shape: torch.Size
    pieces: dict[str, Box]
    folder: Path
    opened: Callable[[str], Any]

    @torch.no_grad()
    def part(self, like: Tensor) -> Tensor:
        """The values with the type, device and sharding of `like`, read without other processes."""
        found = torch.empty_like(like)
        local, (origin, _) = held(found)
        try:
            copied = sum(self._copy(file, box, local, origin) for file, box in self.pieces.items())
            if copied != local.numel():
                raise ValueError("its pieces do not make it up")
        except (OSError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
            raise DataError(
                f"{self.folder}: the sharded tensor {self.name} cannot be read ({error}); delete {self.folder} to "
                "resume from an older checkpoint"
            ) from error
        return found

    def _copy(self, file: str, box: Box, local: Tensor, origin: list[int]) -> int:
        """Copy the common elements of a piece and of this process's part, which begins at `origin`; their number."""
        if not PART.fullmatch(file):
            raise ValueError(f"{file!r} is not a file of parts")
        ends = [first + size for first, size in zip(*box, strict=True)]
        begins = [max(pair) for pair in zip(box[0], origin, strict=True)]
        ends = [min(end, start + size) for end, start, size in zip(ends, origin, local.shape, strict=True)]
        if any(begin >= end for begin, end in zip(begins, ends, strict=True)):
            return 0
        source, target = (
            tuple(slice(begin - start, end - start) for begin, end, start in zip(begins, ends, at, strict=True))
            for at in (box[0], origin)
        )
        piece = self.opened(file).get_slice(self.name)
        if list(piece.get_shape()) != box[1]:
            raise ValueError(f"{file} has the shape {piece.get_shape()}, not {box[1]}")
        return local[target].copy_(piece[source]).numel()


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
