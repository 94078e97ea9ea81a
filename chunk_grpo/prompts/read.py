"""Prompts from a file: text, CSV, JSON lines, a JSON array or Parquet; on a disk, in an object store or on the hub.

Supported layouts include: one prompt per line (the first 50,000 lines of DanceGRPO's assets/prompts.txt), a CSV file
with the header `prompt`, JSON arrays of objects with `prompt` (train.json and test.json of ymhao/HPDv2, the files of
MizzenAI/HPDv3), JSON arrays of prompts (HPSv2's benchmark), and DrawBench's columns `Prompts` and `Category`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from chunk_grpo.artifacts import Location, input_file
from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.checks import check_prompts, fit
from chunk_grpo.prompts.content import (
    INVALID,
    Record,
    decoded,
    json_array,
    json_lines,
    read_bytes,
    require_file,
    split_lines,
)
from chunk_grpo.prompts.findings import Findings, beginning
from chunk_grpo.prompts.hub import hub_file
from chunk_grpo.prompts.rows import CheckedPrompts, PromptRow
from chunk_grpo.prompts.tables import FieldNames, Fields, csv_records, parquet_names, parquet_records

_Format: TypeAlias = Literal["txt", "csv", "jsonl", "json", "parquet"]

_Known: TypeAlias = dict[tuple[str, ...], Fields]
"""Cache: field names of a record to the selected fields."""

_ODD_CATEGORY = "category of another kind"

_SUFFIXES: Mapping[str, _Format] = {
    ".txt": "txt",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
}


@dataclass(frozen=True)
class PromptSource:
    """A file of prompts.

    Attributes:
        location: Path or URL; with `file`, the id of a data set on the hub.
        file: File within the data set; None: `location` is the file itself.
        revision: Revision of the data set; None: main.
        fields: Names of the fields to read, for formats with fields.
        limit: Number of records read from the beginning; None: all.
    """

    location: Location
    file: str | None = None
    revision: str | None = None
    fields: FieldNames = field(default_factory=FieldNames)
    limit: int | None = None

    @property
    def name(self) -> str:
        """Name of the source in messages."""
        if self.file is None:
            return str(self.location)
        return f"{self.location}/{self.file}" + (f"@{self.revision}" if self.revision else "")


def read_prompt_file(source: PromptSource, rules: PromptChecks) -> CheckedPrompts:
    """Read a file of prompts and check it.

    Args:
        source: File to read. An empty line, null or an empty text is an empty prompt; a final line end starts no
            further line.
        rules: Actions for suspicious prompts.

    Returns:
        The prompts in the file's order, with a report. For Parquet files, line numbers are row numbers.

    Raises:
        ConfigError: A file of the hub is requested, but huggingface_hub is not installed.
        DataError: The file is missing, has an unknown format, lacks a field, or has refused problems; up to 20 are
            listed with line and value, the others counted.
        TransientError: the object store does not answer.
    """
    kind = _format(source)
    location = (
        source.location
        if source.file is None
        else hub_file(str(source.location), source.file, source.revision)
    )
    findings = Findings([source.name], "row" if kind == "parquet" else "line")
    known: _Known = {}
    notes: list[str] = []
    if kind == "parquet":
        require_file(location)
        with input_file(location) as path:
            names = parquet_names(path, source.fields, source.name)
            known[tuple(names)] = source.fields.among(names)
            records = parquet_records(path, known[tuple(names)], source.name, findings)
            rows = list(_rows(_limited(records, source, findings, notes), source, findings, known))
    else:
        records = _text_records(kind, decoded(read_bytes(location), source.name, findings), source, findings)
        rows = list(_rows(_limited(records, source, findings, notes), source, findings, known))
    ignored = dict.fromkeys(name for fields in known.values() for name in fields.ignored)
    if ignored:
        notes.append(f"{source.name}: fields that were not read: {', '.join(ignored)}")
    return check_prompts(rows, rules, findings, notes)


def _format(source: PromptSource) -> _Format:
    suffix = Path(str(source.file or source.location)).suffix.lower()
    if suffix not in _SUFFIXES:
        raise DataError(
            f"{source.name}: must end in {', '.join(_SUFFIXES)}, got {suffix or 'no ending'}; rename the file. "
            "Of a data set on the hub, name the file to read by `hub_file`."
        )
    return _SUFFIXES[suffix]


def _text_records(kind: _Format, text: str, source: PromptSource, findings: Findings) -> Iterator[Record]:
    if kind == "csv":
        return csv_records(text, source.fields, source.name, findings)
    if kind == "jsonl":
        return json_lines(text, source.name, findings)
    if kind == "json":
        return json_array(text, source.name, findings)
    return (Record(line, number) for number, line in enumerate(split_lines(text), start=1))


def _limited(
    records: Iterator[Record], source: PromptSource, findings: Findings, notes: list[str]
) -> Iterator[Record]:
    """Yield the first `limit` records; discard problems after them."""
    yield from itertools.islice(records, source.limit)
    rest = next(records, None) if source.limit is not None else None
    if rest is not None:
        findings.until(rest.line, rest.column)
        notes.append(f"{source.name}: read up to the limit of {source.limit}; there is more")


def _rows(
    records: Iterator[Record], source: PromptSource, findings: Findings, known: _Known
) -> Iterator[PromptRow]:
    for record in records:
        if record.value is INVALID:
            continue
        try:
            text, category, name = _values(record.value, source.fields, known)
        except ValueError as error:
            findings.add("record", "no prompt", source.name, record.line, str(error))
            continue
        if category is not None and (isinstance(category, bool) or not isinstance(category, str | int)):
            message = f"{name!r} must be text or a whole number, got {beginning(category)}"
            if source.fields.category is not None:
                message += "; name another by `category_field`, or set that to null"
                findings.add("record", _ODD_CATEGORY, source.name, record.line, message)
                continue
            findings.add("category", _ODD_CATEGORY, source.name, record.line, message)
            category = None
        row = PromptRow(text, "" if category is None else str(category), {}, record.line, source.name)
        if fit(row.category, "category: ", row, findings):
            yield row


def _values(value: object, wanted: FieldNames, known: _Known) -> tuple[str, object, str | None]:
    """Prompt of a record, its category (any type), and the name of the category field.

    Raises:
        ValueError: The record has no prompt.
    """
    if value is None or isinstance(value, str):
        return value or "", None, None
    if not isinstance(value, Mapping):
        raise ValueError(f"must be text or an object with a field for the prompt, got {beginning(value)}")
    names = tuple(value)
    if names not in known:
        known[names] = wanted.among(names)
    fields = known[names]
    text = value[fields.prompt]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{fields.prompt!r} must be text, got {beginning(text)}")
    return text or "", value[fields.category] if fields.category else None, fields.category
