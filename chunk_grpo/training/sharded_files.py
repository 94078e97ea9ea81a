"""Sharded tensors of a checkpoint in one folder, through torch.distributed.checkpoint.

Each process writes its part of each tensor, and reads the part that it needs. The number of processes may differ: only
the files must be reachable.

torch keeps its table of contents as a pickle, `.metadata`, which can run code when it is read. Here the table is plain
values in the checkpoint's own file, and `.metadata` is neither written nor read.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from chunk_grpo.errors import DataError
from chunk_grpo.training.checkpoint_files import Shards, Tensors, UnusableError

_NAME, _SHAPE = "sharded tensor", "shape"


def without_sharded(value: Any, tensors: dict[str, DTensor], name: str = "") -> Any:
    """A copy of nested dicts, lists and tuples in which a name and a shape replace each sharded tensor.

    Args:
        value: Nested value.
        tensors: Receives the sharded tensors by name.
        name: Name of `value`: its keys and positions, joined by "/".
    """
    if isinstance(value, DTensor):
        tensors[name] = value
        return {_NAME: name, _SHAPE: list(value.shape)}
    if type(value) is dict:
        return {key: without_sharded(item, tensors, f"{name}/{key}") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(
            without_sharded(item, tensors, f"{name}/{place}") for place, item in enumerate(value)
        )
    return value


def with_stored(value: Any, folder: Path, shards: Shards | None) -> Any:
    """The inverse of `without_sharded`, with a `StoredTensor` in place of each name and shape.

    Args:
        value: Nested value.
        folder: Folder of the checkpoint.
        shards: Description of its sharded tensors; None: there are none.

    Raises:
        UnusableError: `value` has a sharded tensor that `shards` does not describe.
    """
    tensors: Tensors = {} if shards is None else shards["tensors"]
    reader = None if shards is None else _Reader(folder / shards["folder"], tensors)

    def changed(value: Any) -> Any:
        if type(value) is dict and set(value) == {_NAME, _SHAPE}:
            name, shape = value[_NAME], value[_SHAPE]
            if (
                reader is None
                or (type(name), type(shape)) != (str, list)
                or shape != tensors.get(name, ([], []))[0]
            ):
                raise UnusableError(f"lists no pieces of the sharded tensor {name!r} of shape {shape}")
            return _Stored(name, torch.Size(shape), reader)
        if type(value) is dict:
            return {key: changed(item) for key, item in value.items()}
        return type(value)(map(changed, value)) if type(value) in (list, tuple) else value

    return changed(value)


def write_sharded(
    tensors: dict[str, DTensor], folder: Path, group: distributed.ProcessGroup | None
) -> Tensors:
    """Write tensors to a new folder and sync its files to disk. All processes of `group` must call.

    Returns:
        Where each tensor's pieces are.

    Raises:
        OSError: A process cannot write; all processes raise it.
    """
    try:
        written = save(
            cast(dict[str, Any], tensors),
            storage_writer=_Writer(folder, sync_files=True),
            process_group=group,
        )
    except CheckpointException as error:
        failures = [failure for failure, _ in error.failures.values()]
        raise next((f for f in failures if isinstance(f, OSError)), failures[0]) from error
    found: Tensors = {name: (list(tensors[name].shape), []) for name in sorted(tensors)}
    for name, (_, pieces) in found.items():
        for chunk in cast(TensorStorageMetadata, written.state_dict_metadata[name]).chunks:
            place: _StorageInfo = written.storage_data[MetadataIndex(name, chunk.offsets)]
            where = (place.relative_path, place.offset, place.length)
            pieces.append((*where, list(chunk.offsets), list(chunk.sizes)))
    return found


class _Writer(FileSystemWriter):
    """Writes tensors without a table of contents."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Note where the tensors are."""
        metadata.storage_data = {result.index: result.storage_data for part in results for result in part}


@dataclass(frozen=True)
class _Stored:
    """A tensor in the folder of `write_sharded`."""

    name: str
    shape: torch.Size
    reader: _Reader

    def part(self, like: Tensor) -> Tensor:
        """The values with the type, device and sharding of `like`, read without other processes."""
        found = torch.empty_like(like)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each process reads alone
                load({self.name: found}, storage_reader=self.reader, no_dist=True)
        except CheckpointException as error:
            (failure, _), *_ = error.failures.values()
            folder = self.reader.path
            raise DataError(
                f"{folder}: the sharded tensor {self.name} cannot be read ({failure}); delete {folder} and its .pt "
                "file to resume from an older checkpoint"
            ) from error
        return found


class _Reader(FileSystemReader):
    """Reads tensors by the table of `write_sharded`."""

    def __init__(self, folder: Path, tensors: Tensors) -> None:
        super().__init__(folder)
        places = {
            MetadataIndex(name, torch.Size(offsets)): _StorageInfo(file, start, length)
            for name, (_, pieces) in tensors.items()
            for file, start, length, offsets, _ in pieces
        }
        self._contents = Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(),
                    torch.Size(shape),
                    [
                        ChunkStorageMetadata(torch.Size(first), torch.Size(sizes))
                        for *_, first, sizes in pieces
                    ],
                )
                for name, (shape, pieces) in tensors.items()
            },
            storage_data=places,
        )

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Contents of the folder."""
        return self._contents
