"""Embeddings of prompts: a folder with a table of its rows and tensors in shards of bounded size.

Writing and reading take the memory of one shard or of the rows asked for, whatever the number of prompts. Apart from
io.py because importing torch takes seconds and most stages need no tensors. Errors as in io.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import MappingProxyType

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from chunk_grpo.artifacts.io import read_table, table_from_rows, write_table
from chunk_grpo.artifacts.storage import Location, input_dir, join, output_dir
from chunk_grpo.artifacts.table_checks import REWRITE_IT
from chunk_grpo.errors import DataError
from chunk_grpo.image_files import AWAY, SOURCE

INDEX = "index.parquet"
"""Name of the table embeddings/2 in the folder."""

NEGATIVE = "negative.safetensors"
"""Name of the file with the tensors [1, ...] of the negative prompt."""

SHARD_BYTES = 2**28
"""Largest size of a shard's tensors in bytes, unless a single row is larger: 63 prompts of FLUX.1-dev."""

Prompt = tuple[str, str]
"""(prompt_id, prompt)."""


def distinct_prompts(prompts: Iterable[Prompt], pictures: Mapping[str, Path] = MappingProxyType({})) -> list[Prompt]:
    """The first prompt of each text and picture to edit, in the order of the stored rows.

    `pictures` has the path of each prompt's picture by its id; equal pictures have one path.
    """
    first: dict[tuple[str, Path | None], Prompt] = {}
    for name, text in prompts:
        first.setdefault((text, pictures.get(name)), (name, text))
    return list(first.values())


def write_embeddings(
    prompts: Sequence[Prompt],
    batches: Iterable[Mapping[str, Tensor]],
    location: Location,
    *,
    pictures: Mapping[str, Path] = MappingProxyType({}),
    negative: Mapping[str, Tensor] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write the embeddings of prompts, in any order, as a folder; equal texts with equal pictures share a row.

    `batches` yield tensors [n, ...] by name on the CPU, a row for each of `distinct_prompts` in that order; an OSError
    that they raise is reported as an error of `location`. `negative` has the tensors [1, ...] of the negative prompt's
    text by the same names; None: there is none, or `batches` have each row's own. At most one shard is in memory; its
    tensors have at most `shard_bytes`, unless a single row is larger. ValueError if `batches` have another number of
    rows, or tensors that differ in names or shapes.
    """
    distinct = distinct_prompts(prompts, pictures)
    with output_dir(location) as folder:
        places = list(_write_shards(batches, folder, shard_bytes))
        place_of = {(text, pictures.get(name)): place for (name, text), place in zip(distinct, places, strict=True)}
        found = [(name, text, *place_of[text, pictures.get(name)]) for name, text in prompts]
        rows = [dict(zip(("prompt_id", "prompt", "shard", "row"), row, strict=True)) for row in found]
        if negative is not None:
            save_file({name: tensor.contiguous() for name, tensor in negative.items()}, folder / NEGATIVE)
        write_table(table_from_rows(rows, "embeddings"), folder / INDEX, "embeddings")


def _write_shards(batches: Iterable[Mapping[str, Tensor]], folder: Path, limit: int) -> Iterator[tuple[int, int]]:
    """Write the rows of `batches`; yield shard and row of each."""
    shard: _Shard | None = None
    numbers = count()
    for batch in batches:
        for at in range(_length(batch)):
            row = {name: tensor[at] for name, tensor in batch.items()}
            if shard is None or shard.is_full:
                shard = shard.emptied(next(numbers)) if shard else _Shard(folder, next(numbers), row, limit)
            yield shard.number, shard.add(row)
            if shard.is_full:
                shard.write()
    if shard is not None and not shard.is_full:
        shard.write()


class _Shard:
    """A shard in memory that is filled row by row."""

    def __init__(self, folder: Path, number: int, like: Mapping[str, Tensor], limit: int) -> None:
        """Allocate memory for as many rows as fit; pages that are never filled take no memory."""
        size = max(1, limit // sum(tensor.nbytes for tensor in like.values()))
        self._folder, self.number, self._count = folder, number, 0
        self._tensors = {name: row.new_empty((size, *row.shape)) for name, row in like.items()}
        self._size = size

    @property
    def is_full(self) -> bool:
        return self._count == self._size

    def emptied(self, number: int) -> _Shard:
        """The next shard, in the same memory."""
        self.number, self._count = number, 0
        return self

    def add(self, row: Mapping[str, Tensor]) -> int:
        """Copy a row; return its number."""
        held = {name: (tensor.shape[1:], tensor.dtype) for name, tensor in self._tensors.items()}
        if {name: (tensor.shape, tensor.dtype) for name, tensor in row.items()} != held:
            raise ValueError("all rows must have tensors of the same names, shapes and types")
        for name, tensor in row.items():
            self._tensors[name][self._count] = tensor
        self._count += 1
        return self._count - 1

    def write(self) -> None:
        filled = {name: tensor[: self._count] for name, tensor in self._tensors.items()}
        save_file(filled, self._folder / shard_name(self.number))


def _length(batch: Mapping[str, Tensor]) -> int:
    lengths = {len(tensor) for tensor in batch.values()}
    if len(lengths) != 1:
        raise ValueError(f"the tensors of a batch must have equally many rows, got {sorted(lengths)}")
    return lengths.pop()


def shard_name(number: int) -> str:
    """Name of a shard's file in the folder."""
    return f"shard-{number:05d}.safetensors"


@contextmanager
def open_embeddings(location: Location) -> Iterator[Embeddings]:
    """Open a folder that `write_embeddings` wrote; a remote one is copied for the time of the context.

    Reads the table and the shards' headers only. DataError if a file is missing or damaged, or the shards differ from
    the table or from each other.
    """
    with input_dir(location) as folder:
        yield Embeddings(folder, location)


class Embeddings:
    """Stored rows of tensors. Only the rows asked for are read, from mapped files."""

    def __init__(self, folder: Path, location: Location) -> None:
        """Check the files; arguments as `open_embeddings`, `folder` is the local copy of `location`."""
        self._folder, self._location = folder, location
        records = read_table(folder / INDEX, "embeddings").to_pylist()
        places = dict.fromkeys((int(r["shard"]), int(r["row"])) for r in records)
        self._places = list(places)
        number = {place: row for row, place in enumerate(self._places)}
        self.row_of: dict[Prompt, int] = {
            (r["prompt_id"], r["prompt"]): number[int(r["shard"]), int(r["row"])] for r in records
        }
        """Number of each prompt's row, as `read` takes it."""
        self._names = self._check()

    def read(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """The tensors [n, ...] of n rows by name, on the CPU; at least one of the numbers in `row_of`, in any order."""
        found: dict[str, Tensor] = {}
        wanted: dict[int, list[tuple[int, int]]] = {}
        for at, number in enumerate(rows):
            shard, row = self._places[number]
            wanted.setdefault(shard, []).append((at, row))
        for shard, pairs in wanted.items():
            # Opened for this call only: pages of a mapped file count as memory of the process until it is closed.
            with self._opened(shard_name(shard)) as file:
                for name in self._names:
                    stored = file.get_slice(name)
                    for at, row in pairs:
                        value = stored[row]
                        if name not in found:
                            found[name] = value.new_empty((len(rows), *value.shape))
                        found[name][at] = value
        return found

    def negative(self) -> dict[str, Tensor] | None:
        """The tensors [1, ...] of the negative prompt by name; None: each row has its own, which `read` returns."""
        if any(name.startswith(AWAY) for name in self._names):
            return None
        with self._opened(NEGATIVE) as file:
            found = {name: file.get_tensor(name) for name in sorted(file.keys())}
        wanted = [name for name in self._names if not name.startswith(SOURCE)]
        if found.keys() != set(wanted):
            raise DataError(
                f"{join(self._location, NEGATIVE)}: must hold the tensors {', '.join(wanted)}, got "
                f"{', '.join(found)}. {_AGAIN}"
            )
        return found

    @contextmanager
    def _opened(self, name: str) -> Iterator[safe_open]:
        path = join(self._location, name)
        try:
            with safe_open(self._folder / name, framework="pt") as file:
                yield file
        except FileNotFoundError as error:
            raise DataError(f"{path}: no such file. {_AGAIN}") from error
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path}: corrupt, cut off, or no safetensors file ({error}). {_AGAIN}") from error

    def _check(self) -> tuple[str, ...]:
        """Compare the headers of all shards with the table and with each other; return the names of the tensors."""
        rows: dict[int, int] = {}
        for shard, row in self._places:
            rows[shard] = max(rows.get(shard, 0), row + 1)
        first: dict[str, tuple[list[int], str]] = {}
        for shard, needed in sorted(rows.items()):
            path = join(self._location, shard_name(shard))
            with self._opened(shard_name(shard)) as file:
                slices = {name: file.get_slice(name) for name in sorted(file.keys())}
                held = {name: (stored.get_shape(), stored.get_dtype()) for name, stored in slices.items()}
            if first and first.keys() != held.keys():
                raise DataError(
                    f"{path}: must hold the tensors {', '.join(first)} as the first shard does, got {', '.join(held)}. "
                    f"{_AGAIN}"
                )
            for name, (shape, kind) in held.items():
                if shape[:1] != [needed]:
                    raise DataError(
                        f"{path}: {name} must have the {needed} rows that {INDEX} names, got the shape {shape}. "
                        f"{_AGAIN}"
                    )
                if first.setdefault(name, (shape[1:], kind)) != (shape[1:], kind):
                    raise DataError(
                        f"{path}: a row of {name} must be {first[name][1]} {first[name][0]} as in the first shard, got "
                        f"{kind} {shape[1:]}. {_AGAIN}"
                    )
        return tuple(first)


_AGAIN = REWRITE_IT.replace("Delete it", "Delete the folder")
