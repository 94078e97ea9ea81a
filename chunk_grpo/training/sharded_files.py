"""Sharded tensors of a checkpoint in one folder, through torch.distributed.checkpoint.

Each process writes its part of each tensor, and reads the part that it needs. The number of processes may differ: only
the files must be reachable.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

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


def with_stored(value: Any, folder: Path | None) -> Any:
    """The inverse of `without_sharded`, with a `StoredTensor` in place of each name and shape."""
    reader = None if folder is None else _Reader(folder)

    def changed(value: Any) -> Any:
        if type(value) is dict and set(value) == {_NAME, _SHAPE} and reader is not None:
            return _Stored(value[_NAME], torch.Size(value[_SHAPE]), reader)
        if type(value) is dict:
            return {key: changed(item) for key, item in value.items()}
        return type(value)(map(changed, value)) if type(value) in (list, tuple) else value

    return changed(value)


def write_sharded(tensors: dict[str, DTensor], folder: Path, group: distributed.ProcessGroup | None) -> None:
    """Write tensors to a new folder and sync its files to disk. All processes of `group` must call.

    Raises:
        OSError: A process cannot write; all processes raise it.
    """
    try:
        save(
            cast(dict[str, Any], tensors),
            storage_writer=FileSystemWriter(folder, sync_files=True),
            process_group=group,
        )
    except CheckpointException as error:
        failures = [failure for failure, _ in error.failures.values()]
        raise next((f for f in failures if isinstance(f, OSError)), failures[0]) from error


@dataclass(frozen=True)
class _Stored:
    """A tensor in the folder of `write_sharded`."""

    name: str
    shape: torch.Size
    reader: _Reader

    def part(self, like: Tensor) -> Tensor:
        """The values with the type, device and sharding of `like`, read without other processes."""
        found = torch.empty_like(like)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each process reads alone
            load({self.name: found}, storage_reader=self.reader, no_dist=True)
        return found


class _Reader(FileSystemReader):
    """Reads the table of contents once for all tensors."""

    _contents: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Contents of the folder."""
        if self._contents is None:
            self._contents = super().read_metadata(*args, **kwargs)
        return self._contents
