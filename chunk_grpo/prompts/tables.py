"""CSV and Parquet: records with named fields. Of Parquet only the columns that are asked for are read."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from chunk_grpo.errors import DataError
from chunk_grpo.prompts.content import INVALID, Record, split_lines
from chunk_grpo.prompts.findings import Findings, beginning


@dataclass(frozen=True)
class Fields:
    """Which fields of a record hold what.

    Attributes:
        prompt: holds the prompt.
        category: holds its category; None: there is none.
        ignored: are not read.
    """

    prompt: str
    category: str | None
    ignored: tuple[str, ...]


@dataclass(frozen=True)
class FieldNames:
    """Which fields a caller asks for.

    Attributes:
        prompt: with the prompt; None: the one named prompt or prompts, in small or capital letters.
        category: with the category; None: the one named category, if there is one.
    """

    prompt: str | None = None
    category: str | None = None

    def among(self, names: Sequence[str]) -> Fields:
        """The fields of a record with these names.

        Raises:
            ValueError: a field that is needed is not there, or more than one fits; says which there are.
        """
        there = ", ".join(repr(name) for name in names) or "none"
        prompts = (
            [name for name in names if name.strip().lower() in ("prompt", "prompts")]
            if self.prompt is None
            else [name for name in names if name == self.prompt]
        )
        if len(prompts) != 1:
            wanted = "`prompt`" if self.prompt is None else f"{self.prompt!r}"
            found = "none" if not prompts else f"{len(prompts)}"
            raise ValueError(
                f"needs one field {wanted} with the prompt, got {found} among the fields {there}; name it by "
                "`prompt_field`"
            )
        categories = (
            [name for name in names if name.strip().lower() == "category"]
            if self.category is None
            else [name for name in names if name == self.category]
        )
        if len(categories) > 1 or (self.category is not None and not categories):
            asked = self.category or "category"
            raise ValueError(
                f"needs one field {asked!r}, got {len(categories) or 'none'} among the fields {there}; name it by "
                "`category_field`"
            )
        category = categories[0] if categories else None
        ignored = tuple(name for name in names if name.strip() and name not in (prompts[0], category))
        return Fields(prompts[0], category, ignored)


def csv_records(text: str, fields: FieldNames, source: str, findings: Findings) -> Iterator[Record]:
    """The rows below a header line, as mappings; a row may span lines. A row of another width is a problem.

    Raises:
        DataError: there is no header, or a field that is needed is not in it.
    """
    # Only \n ends a line here, as in split_lines.
    reader = csv.reader([f"{line}\n" for line in split_lines(text)], strict=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            findings.add("record", "no CSV", source, line, f"no CSV ({error}); reading ends here")
            yield Record(INVALID, line)
            return
        if header is None:
            header = _header(row, fields, source, line)
        elif not row:
            yield Record(None, line)
        elif len(row) != len(header):
            message = (
                f"{len(row)} fields, where the header has {len(header)} (text with a comma needs quotes): "
                f"{beginning(','.join(row))}"
            )
            findings.add("record", "another number of fields", source, line, message)
            yield Record(INVALID, line)
        else:
            yield Record(dict(zip(header, row, strict=True)), line)
    if header is None:
        raise DataError(f"{source}: must begin with a header line that names the columns, got an empty file.")


def _header(row: list[str], fields: FieldNames, source: str, line: int) -> list[str]:
    names = [name for name in row if name.strip()]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{source}, line {line}: the column {twice!r} stands in the header more than once.")
    try:
        fields.among(names)
    except ValueError as error:
        raise DataError(f"{source}, line {line}: {error}.") from error
    return row


def parquet_names(path: Path, fields: FieldNames, source: str) -> list[str]:
    """The columns of a Parquet file that has those that are asked for.

    Raises:
        DataError: no Parquet file, or a column that is needed is missing, or that of the prompts is no text.
    """
    try:
        columns = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{source}: corrupt, cut off, or no Parquet file ({_first_line(error)}).") from error
    try:
        prompts = columns.field(fields.among(columns.names).prompt)
    except ValueError as error:
        raise DataError(f"{source}: {error}.") from error
    kind = prompts.type.value_type if pa.types.is_dictionary(prompts.type) else prompts.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(f"{source}: the column {prompts.name!r} must be text, got {prompts.type}.")
    return list(columns.names)


def parquet_records(path: Path, fields: Fields, source: str, findings: Findings) -> Iterator[Record]:
    """The rows as mappings of the fields that are asked for, numbered from 1; the others are not read.

    Raises:
        DataError: the file is damaged.
    """
    columns = dict.fromkeys([fields.prompt, *([fields.category] if fields.category else [])])
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=list(columns)):
                for value in _mappings(batch):
                    number += 1
                    if isinstance(value, UnicodeDecodeError):
                        byte = value.object[value.start]
                        message = f"must be UTF-8, got the byte 0x{byte:02x}: {beginning(value.object)}"
                        findings.add("encoding", "wrong encoding", source, number, message)
                        yield Record(INVALID, number)
                    else:
                        yield Record(value, number)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{source}, after row {number}: corrupt or cut off ({_first_line(error)})."
        ) from error


def _mappings(batch: pa.RecordBatch) -> Iterator[dict[str, object] | UnicodeDecodeError]:
    """Each row as a mapping, or why it is none."""
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        for index in range(batch.num_rows):
            try:
                yield batch.slice(index, 1).to_pylist()[0]
            except UnicodeDecodeError as error:
                yield error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
