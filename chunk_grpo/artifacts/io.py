"""Read and write artifacts: tables with a checked schema, text, JSON and CSV.

Besides what is said at a function, each raises DataError, with reason and remedy, if a file cannot be read or written,
and TransientError if the object store does not answer.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from chunk_grpo.artifacts.schemas import SCHEMA_KEY, SCHEMAS, VERSION_KEY, SchemaName, TableSchema
from chunk_grpo.artifacts.storage import Location, input_file, output_file
from chunk_grpo.artifacts.table_checks import REWRITE_IT, check_nulls, check_rows
from chunk_grpo.errors import DataError

ROW_GROUP_BYTES = 2**26
"""Approximate size of a row group: Arrow cannot read more than 2 GiB of a nested column, such as images, at a time."""


def table_from_rows(rows: Iterable[Mapping[str, Any]], schema_name: SchemaName) -> pa.Table:
    """Build a table of the named schema from one mapping per row."""
    return pa.Table.from_pylist(list(rows), schema=SCHEMAS[schema_name].columns)


def write_table(
    table: pa.Table,
    location: Location,
    schema_name: SchemaName,
    about: Mapping[str, str] | None = None,
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
) -> None:
    """Write a table as Parquet, with the schema's name and version, and `about`, in its metadata.

    Columns may be in any order; types are cast where that is lossless. A row group has at most `row_group_bytes`,
    unless a single row is larger. A table that does not fit the schema is a DataError.
    """
    fitting = _fitting(table, schema_name, location)
    _write(_slices(fitting, row_group_bytes), location, schema_name, about or {})


def write_rows(
    rows: Iterable[Mapping[str, Any]],
    location: Location,
    schema_name: SchemaName,
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
) -> None:
    """As `write_table`, row by row: at most one row group is in memory.

    Equal rows give equal bytes. An OSError raised by `rows` is reported as an error of `location`.
    """
    tables = (table_from_rows(group, schema_name) for group in _row_groups(rows, row_group_bytes))
    _write((_fitting(table, schema_name, location) for table in tables), location, schema_name, {})


def read_table(location: Location, schema_name: SchemaName, of: Mapping[str, object] | None = None) -> pa.Table:
    """Read a Parquet table that `write_table` wrote, of the schema's current version; columns are in its order.

    `of` has a column's value in every row, such as the policy whose table it must be. A file that is no such table, or
    a row that breaks a rule of the schema, is a DataError.
    """
    schema = SCHEMAS[schema_name]
    with _opened(location, schema) as file:
        batches = list(_batches(file, schema.columns.names))
        table = pa.Table.from_batches(batches, file.schema_arrow)
    check_rows(table, schema, location, of)
    return table.select(schema.columns.names)


def read_parts(
    location: Location,
    schema_name: SchemaName,
    columns: Sequence[str] | None = None,
    of: Mapping[str, object] | None = None,
) -> Iterator[pa.Table]:
    """Read a table as `read_table`, part by part: about `ROW_GROUP_BYTES`, or one row, are in memory at a time.

    Yields consecutive rows, at least one; nothing for a table without rows. `columns` are read in this order, None:
    all. Other nested columns, such as images, take no time.
    """
    schema = SCHEMAS[schema_name]
    names = list(columns or schema.columns.names)
    plain = schema.plain_columns
    first = 0
    with _opened(location, schema) as file:
        found = pa.schema([file.schema_arrow.field(name) for name in plain])
        check_rows(pa.Table.from_batches(list(_batches(file, plain)), found), schema, location, of)
        for batch in _batches(file, names):
            if batch.num_rows:
                part = pa.Table.from_batches([batch]).select(names)
                check_nulls(part, schema, location, first)
                yield part
                first += batch.num_rows


def write_text(text: str, location: Location) -> None:
    """Write text as UTF-8; errors as `write_bytes`."""
    write_bytes(text.encode("utf-8"), location)


def write_bytes(content: bytes, location: Location) -> None:
    """Write a file in one step."""
    with output_file(location) as draft:
        draft.write_bytes(content)


def write_json(value: object, location: Location) -> None:
    """Write indented JSON; errors as `write_bytes`. NaN and infinity raise ValueError."""
    write_text(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n", location)


def write_csv(table: pa.Table, location: Location) -> None:
    """Write a table as CSV with a header, for people and `dvc plots`; errors as `write_bytes`.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    options = pa.csv.WriteOptions(quoting_style="needed")
    for number, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if pa.types.is_string(column.type):
            plain = pc.replace_substring_regex(column, r"^([=+\-@\t\r])", r"'\1")
            table = table.set_column(number, name, plain)
    with output_file(location) as draft:
        pa.csv.write_csv(table, draft, options)


def read_text(location: Location) -> str:
    """Read UTF-8 text."""
    with input_file(location) as path:
        content = path.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        byte = content[error.start]
        raise DataError(
            f"{location}, line {line}: must be UTF-8, got the byte 0x{byte:02x}. Save the file as UTF-8."
        ) from error


def read_json(location: Location) -> Any:
    """Read JSON."""
    try:
        return json.loads(read_text(location))
    except json.JSONDecodeError as error:
        raise DataError(f"{location}, line {error.lineno}: corrupt or no JSON ({error.msg}). {REWRITE_IT}") from error


def _fitting(table: pa.Table, schema_name: SchemaName, location: Location) -> pa.Table:
    """Table with the schema's columns, in its order and types."""
    schema = SCHEMAS[schema_name]
    _check_columns(table.column_names, schema, location)
    check_nulls(table, schema, location)
    try:
        return table.select(schema.columns.names).cast(schema.columns)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise DataError(f"{location}: does not fit the schema {schema.name}/{schema.version}: {error}") from error


def _write(tables: Iterable[pa.Table], location: Location, schema_name: SchemaName, about: Mapping[str, str]) -> None:
    """Write each table as a row group; nothing is left if a row breaks a rule."""
    schema = SCHEMAS[schema_name]
    more = {key.encode(): value.encode() for key, value in about.items()}
    columns = schema.columns.with_metadata({**schema.metadata, **more})
    written = [columns.empty_table().select(schema.plain_columns)]
    with output_file(location) as draft:
        with pq.ParquetWriter(draft, columns, write_page_checksum=True) as writer:
            for table in tables:
                own = table.replace_schema_metadata(columns.metadata)
                writer.write_table(own)
                written.append(own.select(schema.plain_columns))
        check_rows(pa.concat_tables(written), schema, location)


def _slices(table: pa.Table, limit: int) -> Iterator[pa.Table]:
    """Yield slices of a table of at most `limit` bytes, or of a single row."""
    if table.num_rows <= 1 or table.nbytes <= limit:
        yield table
        return
    half = table.num_rows // 2
    yield from _slices(table.slice(0, half), limit)
    yield from _slices(table.slice(half), limit)


def _row_groups(rows: Iterable[Mapping[str, Any]], limit: int) -> Iterator[list[Mapping[str, Any]]]:
    """Yield groups of rows of at most `limit` bytes, or of a single row."""
    group: list[Mapping[str, Any]] = []
    held = 0
    for row in rows:
        size = _size(row)
        if group and held + size > limit:
            yield group
            group, held = [], 0
        group.append(row)
        held += size
    yield group


def _size(value: object) -> int:
    """Approximate bytes of a value in a table."""
    if isinstance(value, Mapping):
        return sum(_size(item) for item in value.values())
    return len(value) if isinstance(value, bytes | str) else 8


@contextmanager
def _opened(location: Location, schema: TableSchema) -> Iterator[pq.ParquetFile]:
    """Open a table after checks of its name, version, columns and types; inside, pyarrow's errors are translated."""
    with input_file(location) as path:
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                _check_identity(file.schema_arrow.metadata or {}, schema, location)
                _check_columns(file.schema_arrow.names, schema, location)
                _check_types(file.schema_arrow, schema, location)
                yield file
        except (pa.ArrowNotImplementedError, pa.ArrowCapacityError, MemoryError) as error:
            raise DataError(
                f"{location}: cannot be read here ({_first_line(error)}), but need not be damaged. Keep it, and try "
                "with more free memory or the pyarrow of constraints.txt."
            ) from error
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # damaged pages raise OSError
            raise DataError(
                f"{location}: corrupt, cut off, or no Parquet file ({_first_line(error)}). {REWRITE_IT}"
            ) from error


def _batches(file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """All rows in parts: files of other programs may have row groups above 2 GiB."""
    read = 0
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        parts = max(1, -(-group.total_byte_size // ROW_GROUP_BYTES))
        rows = max(1, group.num_rows // parts)
        for batch in file.iter_batches(batch_size=rows, row_groups=[number], columns=list(columns)):
            read += batch.num_rows
            yield batch
    if read != file.metadata.num_rows:  # checksums do not cover the headers of pages
        raise pa.ArrowInvalid(f"{file.metadata.num_rows} rows, of which {read} can be read")


def _check_identity(metadata: Mapping[bytes, bytes], schema: TableSchema, location: Location) -> None:
    """Check name and version in the metadata of the file."""
    wanted = f"{schema.name}/{schema.version}"
    name, version = metadata.get(SCHEMA_KEY), metadata.get(VERSION_KEY)
    if name is None or version is None or not version.isdigit():
        raise DataError(
            f"{location}: must be the table {wanted}, got a Parquet file that chunk-grpo did not write. Check the path."
        )
    found = name.decode(errors="replace")
    if found != schema.name:
        raise DataError(f"{location}: must be the table {wanted}, got the table {found}. Check the path.")
    if int(version) < schema.version:
        raise DataError(f"{location}: must be the table {wanted}, got the older version {int(version)}. {REWRITE_IT}")
    if int(version) > schema.version:
        raise DataError(
            f"{location}: must be the table {wanted}, got the newer version {int(version)}. "
            "Update chunk-grpo, or write the file again with this version (`dvc repro`)."
        )


def _check_columns(names: list[str], schema: TableSchema, location: Location) -> None:
    missing = [name for name in schema.columns.names if name not in names]
    extra = [name for name in names if name not in schema.columns.names]
    if missing or extra:
        parts = [f"{what}: {', '.join(which)}" for what, which in (("missing", missing), ("unknown", extra)) if which]
        raise DataError(f"{location}: the columns of {schema.name}/{schema.version} do not match; {'; '.join(parts)}.")


def _check_types(found: pa.Schema, schema: TableSchema, location: Location) -> None:
    for field in schema.columns:
        if (kind := found.field(field.name).type) != field.type:
            raise DataError(
                f"{location}: column {field.name!r} must be {field.type} in {schema.name}/{schema.version}, "
                f"got {kind}. {REWRITE_IT}"
            )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
