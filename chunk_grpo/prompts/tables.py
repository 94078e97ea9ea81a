"""CSV and Parquet: records with named fields. Only the selected columns of Parquet files are read."""

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
    """Fields of a record.

    Attributes:
        prompt: Field with the prompt.
        category: Field with the category, or None.
        ignored: Fields that are not read.
    """

    prompt: str
    category: str | None
    ignored: tuple[str, ...]


@dataclass(frozen=True)
class FieldNames:
    """Names of the fields to read.

    Attributes:
        prompt: Field with the prompt; None: the field named prompt or prompts, in any case.
        category: Field with the category; None: the field named category, in any case, if there is one.
    """

    prompt: str | None = None
    category: str | None = None

    def among(self, names: Sequence[str]) -> Fields:
        """Select the fields of a record with these names.

        Raises:
            ValueError: A required field is missing or ambiguous; the message lists the names.
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
    """Yield the rows below the header as mappings; a row may span lines. A row of another width becomes a finding.

    Raises:
        DataError: The header or a required field in it is missing.
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
                f"{len(row)} fields, but the header has {len(header)} (text with a comma needs quotes): "
                f"{beginning(','.join(row))}"
            )
            findings.add("record", "wrong number of fields", source, line, message)
            yield Record(INVALID, line)
        else:
            yield Record(dict(zip(header, row, strict=True)), line)
    if header is None:
        raise DataError(f"{source}: must begin with a header line that names the columns, got an empty file.")


def _header(row: list[str], fields: FieldNames, source: str, line: int) -> list[str]:
    names = [name for name in row if name.strip()]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{source}, line {line}: the header has the column {twice!r} more than once.")
    try:
        fields.among(names)
    except ValueError as error:
        raise DataError(f"{source}, line {line}: {error}.") from error
    return row


def parquet_names(path: Path, fields: FieldNames, source: str) -> list[str]:
    """Read the column names of a Parquet file and check that the required columns are in it.

    Raises:
        DataError: The file is not Parquet, a required column is missing, or the prompt column is not text.
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
    """Yield the rows, numbered from 1, as mappings of the selected fields.

    Raises:
        DataError: The file is damaged.
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
    """Yield each row as a mapping, or its decoding error."""
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
