"""Records of prompt files: lines of text, rows of CSV and Parquet, values of JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from chunk_grpo.artifacts import Location, input_file, read_text
from chunk_grpo.artifacts.storage import is_remote
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.fields import FieldNames
from chunk_grpo.prompts.findings import beginning

Record: TypeAlias = tuple[int, object]
"""Number of the line or row, from 1, and its value: text, a mapping of field names to values, None if it is empty, a
ValueError if it cannot be read, or any other JSON value.
"""


def require_file(location: Location) -> None:
    """Check that a local path is a regular file; reading a pipe would block.

    Raises:
        DataError: The path does not exist or is not a regular file.
    """
    if is_remote(location) or Path(location).is_file():
        return
    reason = "not a file" if Path(location).exists() else "no such file"
    raise DataError(f"{location}: {reason}. Fix the path; for a data set on the hub, set `hub_file` as well.")


def text_lines(location: Location) -> list[str]:
    r"""Read UTF-8 lines without \n or \r\n at their ends; a final \n starts no further line.

    str.splitlines would also split at ten other characters, so line numbers would differ from an editor's.

    Raises:
        DataError: The file is missing, unreadable or not UTF-8.
        TransientError: The object store does not answer.
    """
    lines = _text(location).split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def csv_records(location: Location, fields: FieldNames, source: str) -> Iterator[Record]:
    """Yield the rows below the header as mappings, with the line where each begins.

    Raises:
        DataError: The file cannot be read, is no CSV, or lacks a required field.
    """
    rows = csv.reader([f"{line}\n" for line in text_lines(location)], strict=True)
    line = 1
    try:
        header = next(rows, [])
        fields.among(header)
        line = rows.line_num + 1
        for row in rows:
            value: object = dict(zip(header, row, strict=False)) if row else None
            if row and len(row) != len(header):
                value = ValueError(
                    f"{len(row)} fields, but the header has {len(header)} (text with a comma needs quotes): "
                    f"{beginning(','.join(row))}"
                )
            yield line, value
            line = rows.line_num + 1
    except csv.Error as error:
        raise DataError(f"{source}, line {line}: no CSV ({error}). Fix the file, or a copy of it.") from error
    except ValueError as error:
        raise DataError(f"{source}, line {line}: {error}.") from error


def json_lines(location: Location) -> Iterator[Record]:
    """Yield the value of each line.

    Raises:
        DataError: The file cannot be read.
    """
    for number, line in enumerate(text_lines(location), start=1):
        try:
            value = _DECODER.decode(line) if line.strip() else None
        except (ValueError, RecursionError) as error:
            value = ValueError(f"no JSON ({getattr(error, 'msg', error)}): {beginning(line)}")
        yield number, value


def json_array(location: Location, source: str) -> Iterator[Record]:
    """Yield the values of a JSON array.

    Raises:
        DataError: The file cannot be read, or is not a JSON array.
    """
    try:
        values = _DECODER.decode(_text(location))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{source}: must be one JSON array ({error}). Fix the file, or name it .jsonl if each line has a value."
        ) from error
    if not isinstance(values, list):
        raise DataError(f"{source}: must be a JSON array of prompts, got {beginning(values)}.")
    yield from enumerate(values, start=1)


def parquet_records(location: Location, fields: FieldNames, source: str) -> Iterator[Record]:
    """Yield the rows as mappings; fields that are not read are None.

    Raises:
        DataError: The file cannot be read, is damaged or no Parquet, or lacks a required field.
    """
    number = 0
    try:
        with input_file(location) as path, pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            chosen = fields.among(names)
            columns = [name for name in names if name in chosen]  # others, such as images, may be large
            for batch in file.iter_batches(columns=columns):
                for values in zip(*batch.columns, strict=True):
                    texts = [value.as_py() for value in values]
                    number += 1
                    yield number, dict.fromkeys(names) | dict(zip(columns, texts, strict=True))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{source}, from row {number + 1}: no Parquet file, damaged, or not UTF-8 ({reason}). Fix the file."
        ) from error
    except ValueError as error:
        raise DataError(f"{source}: {error}.") from error


def _text(location: Location) -> str:
    require_file(location)
    return read_text(location).removeprefix("\ufeff")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Reject repeated keys in an object; json would silently keep the last one."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError(f"a key is repeated: {', '.join(name for name, _ in pairs)}")
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=_once)
