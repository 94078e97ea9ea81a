"""Records of prompt files: lines of text, rows of CSV and Parquet, values of JSON.

A file that cannot be read, has another format or lacks a required field is a DataError.
"""

from __future__ import annotations

import collections
import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from chunk_grpo.artifacts import Location, input_file, read_text
from chunk_grpo.artifacts.storage import is_remote
from chunk_grpo.errors import DataError
from chunk_grpo.git import FETCH_LFS, LFS_POINTER
from chunk_grpo.prompts.fields import FieldNames
from chunk_grpo.prompts.findings import beginning, shortened

Record: TypeAlias = tuple[int, object]
"""Number of the line or row, from 1, and its value: text, a mapping of field names to values, None if it is empty, a
ValueError if it cannot be read, or any other JSON value. A mapping has UNREAD for fields that were not read.
"""

Quoting: TypeAlias = Literal[0, 3]
"""csv.QUOTE_MINIMAL or csv.QUOTE_NONE."""

UNREAD = object()
"""Value of a field that was not read."""

_SIMPLE = (
    pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string,
    pa.types.is_large_string,
)  # fmt: skip
_NESTED = (
    pa.types.is_dictionary, pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list,
)  # fmt: skip
"""Tests of Parquet's types for values that JSON has, and for lists of such values."""

MAX_RECORDS = 2_000_000
"""Maximum number of records that are read from a file. A small Parquet file can hold billions of equal ones."""

_MAX_BYTES = 2**32
"""Maximum size of what is read of a Parquet file, which can be a million times the file's."""

_BATCH_ROWS = 1024
"""Rows of a Parquet file that are unpacked at a time, so that long values do not fill the memory."""

_DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
"""Delimiters of .csv files, in the order in which the header is tried, and their names."""


def text_lines(location: Location) -> list[str]:
    r"""Read UTF-8 lines without \n or \r\n at their ends; a final \n starts no further line.

    str.splitlines would also split at ten other characters, so line numbers would differ from an editor's.
    """
    lines = _text(location).split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def csv_records(location: Location, fields: FieldNames, source: str) -> Iterator[Record]:
    """Yield the rows below the header as mappings, with the line where each begins.

    The delimiter is the first of comma, semicolon and tab with which the header has the required fields.
    """
    lines = [f"{line}\n" for line in text_lines(location)]
    fitting = (delimiter for delimiter in _DELIMITERS if _has_fields(lines[:1], delimiter, fields))
    yield from _rows(lines, next(fitting, ","), csv.QUOTE_MINIMAL, fields, source)


def tsv_records(location: Location, fields: FieldNames, source: str) -> Iterator[Record]:
    """Yield the rows below the header as mappings, with the line where each begins.

    Spreadsheets put quotes around texts with quotes or tabs, as in CSV. Other writers do not (PartiPrompts.tsv): if a
    quote in the file does not fit CSV's rules, all quotes are part of the texts.
    """
    lines = [f"{line}\n" for line in text_lines(location)]
    quoting: Quoting = csv.QUOTE_MINIMAL
    try:
        collections.deque(csv.reader(lines, delimiter="\t", strict=True), maxlen=0)
    except csv.Error:
        quoting = csv.QUOTE_NONE
    yield from _rows(lines, "\t", quoting, fields, source)


def _has_fields(header: Sequence[str], delimiter: str, fields: FieldNames) -> bool:
    try:
        fields.among(next(csv.reader(header, delimiter=delimiter), []))
    except (ValueError, csv.Error):
        return False
    return True


def _rows(lines: Sequence[str], delimiter: str, quoting: Quoting, fields: FieldNames, source: str) -> Iterator[Record]:
    rows = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    line = 1
    try:
        header = next(rows, [])
        if not header:
            raise ValueError("needs a header with the names of the fields, got an empty line or file; write one")
        fields.among(header)
        line = rows.line_num + 1
        for row in rows:
            value: object = dict(zip(header, row, strict=False)) if row else None
            if row and len(row) != len(header):
                value = ValueError(
                    f"{len(row)} fields, but the header has {len(header)} (text with "
                    f"{_DELIMITERS[delimiter]} needs quotes): {beginning(delimiter.join(row))}"
                )
            yield line, value
            line = rows.line_num + 1
    except csv.Error as error:
        raise DataError(f"{source}, line {line}: no CSV ({error}). Fix the file, or a copy of it.") from error
    except ValueError as error:
        raise DataError(f"{source}, line {line}: {error}.") from error


def json_lines(location: Location) -> Iterator[Record]:
    """Yield the value of each line."""
    for number, line in enumerate(text_lines(location), start=1):
        try:
            value = _DECODER.decode(line) if line.strip() else None
        except (ValueError, RecursionError) as error:
            value = ValueError(f"no JSON ({getattr(error, 'msg', error)}): {beginning(line)}")
        yield number, value


def json_array(location: Location, source: str) -> Iterator[Record]:
    """Yield the values of a JSON array."""
    try:
        values = _DECODER.decode(_text(location))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{source}: must be one JSON array ({error}). Fix the file, or name it .jsonl if each line has a value."
        ) from error
    if not isinstance(values, list):
        raise DataError(f"{source}: must be a JSON array of prompts, got {beginning(values)}.")
    yield from enumerate(values, start=1)


def bounded(records: Iterable[Record], source: str) -> Iterator[Record]:
    """Yield the records of a file; more than MAX_RECORDS are a DataError."""
    for number, record in enumerate(records, start=1):
        if number > MAX_RECORDS:
            raise _too_many(source, "more")
        yield record


def _too_many(source: str, count: str) -> DataError:
    return DataError(
        f"{source}: must have at most {MAX_RECORDS:,} records, got {count}; set the file's `limit`, to read those "
        "at the beginning, or name a smaller file"
    )


def parquet_records(location: Location, fields: FieldNames, source: str, limit: int | None = None) -> Iterator[Record]:
    """Yield the rows as mappings, of which `limit` will be read (None: all).

    Metadata of a type that JSON lacks, such as images and dates, are not read.
    """
    _require_file(location)
    number, unpacked = 0, 0
    try:
        with input_file(location) as path, pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            if limit is None and file.metadata.num_rows > MAX_RECORDS:
                raise _too_many(source, f"{file.metadata.num_rows:,}")
            chosen = fields.among(schema.names)
            kept = [name for name in chosen.metadata if _is_json(schema.field(name).type)]
            columns = [name for name in schema.names if name in (chosen.prompt, chosen.category, chosen.picture, *kept)]
            unread = dict.fromkeys((name for name in schema.names if name not in columns), UNREAD)
            for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
                arrays = [
                    array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
                    for array in batch.columns
                ]
                unpacked += sum(array.nbytes for array in arrays)
                if unpacked > _MAX_BYTES:
                    raise DataError(
                        f"{source}, row {number + 1}: the rows up to here must have at most {_MAX_BYTES / 2**30:g} "
                        f"GiB; name the columns that scorers need by {fields.setting('metadata_fields')} ([]: none), "
                        f"or set {fields.setting('limit')}"
                    )
                for values in zip(*arrays, strict=True):
                    read = [_json_value(value.as_py()) for value in values]
                    number += 1
                    yield number, unread | dict(zip(columns, read, strict=True))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{source}, from row {number + 1}: no Parquet file, damaged, or not UTF-8 ({reason}). Fix the file."
        ) from error
    except ValueError as error:
        raise DataError(f"{source}: {error}.") from error


def _is_json(kind: pa.DataType) -> bool:
    """Whether JSON has the values of a type."""
    if pa.types.is_struct(kind):
        return all(_is_json(part.type) for part in kind)
    if any(is_nested(kind) for is_nested in _NESTED):
        return _is_json(kind.value_type)
    return any(is_simple(kind) for is_simple in _SIMPLE)


def _json_value(value: Any) -> Any:
    """A value of Parquet with null in place of NaN, as which pandas writes missing numbers."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, list):
        return [_json_value(part) for part in value]
    if isinstance(value, dict):
        return {name: _json_value(part) for name, part in value.items()}
    return value


def _require_file(location: Location) -> None:
    """DataError unless a local path is a regular file; reading a pipe would block."""
    if is_remote(location) or Path(location).is_file():
        return
    reason = "not a file" if Path(location).exists() else "no such file"
    raise DataError(f"{location}: {reason}. Fix the path; for a data set on the hub, set `hub_file` beside it.")


def _text(location: Location) -> str:
    _require_file(location)
    text = read_text(location).removeprefix("\ufeff")
    if text.startswith(LFS_POINTER):
        raise DataError(f"{location}: {FETCH_LFS}.")
    return text


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Reject repeated keys in an object; json would silently keep the last one."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError(f"a key is repeated: {shortened(', '.join(name for name, _ in pairs))}")
    return made


def _no_json(name: str) -> object:
    """Reject NaN and Infinity, which Python's json accepts and other readers of the metadata do not."""
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_json)
