"""Rules for the rows of a table. The first row that breaks one is a DataError, on reading and on writing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from chunk_grpo.artifacts.schemas import TableSchema
from chunk_grpo.artifacts.storage import Location
from chunk_grpo.errors import DataError

REWRITE_IT = (
    "Delete it and run `dvc repro` to write it again. If it comes back so, it is damaged in DVC's cache as well: "
    "see docs/operations.md, A damaged cache."
)

ROUNDING = 1e-6
"""A score may lie outside its scale by this share of the scale's width: sums of weighted parts are rounded."""

_Broken = tuple[str, str, pa.ChunkedArray]
"""Column, its rule, and a mask of the rows that break it."""


def check_rows(
    table: pa.Table, schema: TableSchema, location: Location, of: Mapping[str, object] | None = None
) -> None:
    """Check the columns that the table has, but no nested ones, and its key if it has all columns of it.

    `location` is for messages. `of` has a column's value in every row: whose table it must be.
    """
    check_nulls(table, schema, location)
    for broken in _broken(table, schema, of or {}):
        _refuse(table, location, *broken)
    if set(schema.key) <= set(table.column_names):
        _check_key(table.select(schema.key), location)


def check_nulls(table: pa.Table, schema: TableSchema, location: Location, first: int = 0) -> None:
    """Require values, also in parts of a nested column; `first` is the number of the table's first row in the file."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if schema.columns.field(name).nullable:
            continue
        parts = range(column.type.num_fields) if pa.types.is_struct(column.type) else ()
        for part in (column, *(pc.struct_field(column, [index]) for index in parts)):
            if part.null_count:
                _refuse(table, location, name, "have a value", part.is_null(), first)


def check_scale(table: pa.Table, location: Location, low: float, high: float) -> None:
    """Check that scores (schema scores) lie on their scorer's scale; details have scales of their own."""
    slack = ROUNDING * (high - low) if math.isfinite(high - low) else ROUNDING
    value, is_score = table["value"], pc.equal(table["metric"], "score")
    outside = pc.or_(pc.less(value, low - slack), pc.greater(value, high + slack))
    _refuse(table, location, "value", f"be in [{low:g}, {high:g}], the scorer's scale", pc.and_(is_score, outside))


def _broken(table: pa.Table, schema: TableSchema, of: Mapping[str, object]) -> Iterator[_Broken]:
    for name, value in of.items():
        if name in table.column_names:
            yield name, f"be {value!r} in every row", pc.not_equal(table[name], value)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_floating(column.type) and name not in schema.undefined:
            yield name, "be finite", pc.invert(pc.is_finite(column))
        low, high = schema.ranges.get(name, (-math.inf, math.inf))
        if low > -math.inf:
            yield name, f"be at least {low:g}", pc.less(column, low)
        if high < math.inf:
            yield name, f"be at most {high:g}", pc.greater(column, high)
        if name in schema.choices:
            known = pc.is_in(column, pa.array(schema.choices[name]))
            yield name, f"be one of {', '.join(schema.choices[name])}", pc.invert(known)
        if name in schema.records:
            broken = [not _is_record(text.as_py()) for text in column]
            yield name, "be a JSON object", pa.chunked_array([broken])
    for name, reason in schema.reasons.items():
        if {name, reason} <= set(table.column_names):
            has_reason = pc.fill_null(pc.not_equal(table[reason], ""), False)
            rule = f"be null exactly where {reason!r} gives the reason"
            yield name, rule, pc.equal(table[name].is_valid(), has_reason)


def _is_record(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(table: pa.Table, location: Location, column: str, rule: str, bad: pa.ChunkedArray, first: int = 0) -> None:
    """Raise if the mask `bad` has a row."""
    row = pc.index(bad, True).as_py()
    if row >= 0:
        value = table[column][row].as_py()
        got = "null" if value is None or isinstance(value, dict) else repr(value)
        got = got if len(got) <= 80 else f"{got[:80]}..."
        raise DataError(f"{location}: row {first + row}: column {column!r} must {rule}, got {got}. {REWRITE_IT}")


def _check_key(keys: pa.Table, location: Location) -> None:
    names = keys.column_names
    if keys.group_by(names, use_threads=False).aggregate([]).num_rows == keys.num_rows:
        return
    seen: dict[tuple[Any, ...], int] = {}
    for row, key in enumerate(zip(*(column.to_pylist() for column in keys.columns), strict=True)):
        if key in seen:
            told = ", ".join(f"{name}={value!r}" for name, value in zip(names, key, strict=True))
            raise DataError(
                f"{location}: row {row}: must differ from every other row in {', '.join(names)}, got those of row "
                f"{seen[key]} ({told}). {REWRITE_IT}"
            )
        seen[key] = row
