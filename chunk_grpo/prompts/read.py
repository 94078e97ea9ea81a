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
from typing import TypeAlias

from chunk_grpo.artifacts import Location
from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.checks import check_prompts
from chunk_grpo.prompts.fields import FieldNames
from chunk_grpo.prompts.findings import Findings, Kind, beginning
from chunk_grpo.prompts.hub import hub_file
from chunk_grpo.prompts.records import (
    Record,
    csv_records,
    json_array,
    json_lines,
    parquet_records,
    require_file,
    text_lines,
)
from chunk_grpo.prompts.rows import CheckedPrompts, PromptRow

_Known: TypeAlias = dict[tuple[str, ...], tuple[str, str | None]]
"""Names of a record's fields to the fields of its prompt and of its category."""

_SUFFIXES = (".txt", ".csv", ".jsonl", ".ndjson", ".json", ".parquet")


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
        The prompts in the file's order, with a report. For JSON arrays and Parquet files, line numbers are row numbers.

    Raises:
        ConfigError: A file of the hub is requested, but huggingface_hub is not installed.
        DataError: The file is missing, has an unknown or another format, lacks a field, or has refused problems; up to
            20 are listed with line and value, the others counted.
        TransientError: the object store does not answer.
    """
    suffix = Path(str(source.file or source.location)).suffix.lower()
    if suffix not in _SUFFIXES:
        raise DataError(
            f"{source.name}: must end in {', '.join(_SUFFIXES)}, got {suffix or 'no ending'}; rename the file. "
            "Of a data set on the hub, name the file to read by `hub_file`."
        )
    location = source.location
    if source.file is not None:
        location = hub_file(str(location), source.file, source.revision)
    require_file(location)
    records = _records(suffix, location, source)
    findings = Findings([source.name], "row" if suffix in (".json", ".parquet") else "line")
    known: _Known = {}
    rows = [_row(record, source, findings, known) for record in itertools.islice(records, source.limit)]
    notes = []
    if source.limit is not None and next(records, None) is not None:
        notes.append(f"{source.name}: read up to the limit of {source.limit}; there is more")
    ignored = dict.fromkeys(
        name for names, read in known.items() for name in names if name.strip() and name not in read
    )
    if ignored:
        notes.append(f"{source.name}: fields that were not read: {', '.join(ignored)}")
    return check_prompts((row for row in rows if row is not None), rules, findings, notes)


def _records(suffix: str, location: Location, source: PromptSource) -> Iterator[Record]:
    if suffix == ".txt":
        return enumerate(text_lines(location), start=1)
    if suffix == ".csv":
        return csv_records(location, source.fields, source.name)
    if suffix == ".json":
        return json_array(location, source.name)
    if suffix == ".parquet":
        return parquet_records(location, source.fields, source.name)
    return json_lines(location)


def _row(record: Record, source: PromptSource, findings: Findings, known: _Known) -> PromptRow | None:
    """Prompt of a record; None if it has none."""
    line, value = record
    try:
        text, category, name = _values(value, source.fields, known)
    except ValueError as error:
        findings.add("format", "no prompt", source.name, line, str(error))
        return None
    if isinstance(category, bool) or not isinstance(category, str | int | None):
        message = f"{name!r} must be text or a whole number, got {beginning(category)}"
        kind: Kind = "category"
        if source.fields.category is not None:
            kind, message = "format", f"{message}; name another by `category_field`, or set that to null"
        findings.add(kind, "category of another kind", source.name, line, message)
        category = None
    return PromptRow(text, "" if category is None else str(category), {}, line, source.name)


def _values(value: object, wanted: FieldNames, known: _Known) -> tuple[str, object, str | None]:
    """Prompt of a record, its category (any type), and the name of the category field.

    Raises:
        ValueError: The record has no prompt.
    """
    if isinstance(value, ValueError):
        raise value
    if value is None or isinstance(value, str):
        return value or "", None, None
    if not isinstance(value, Mapping):
        raise ValueError(f"must be text or an object with a field for the prompt, got {beginning(value)}")
    names = tuple(value)
    if names not in known:
        known[names] = wanted.among(names)
    prompt, category = known[names]
    text = value[prompt]
    if not isinstance(text, str | None):
        raise ValueError(f"{prompt!r} must be text, got {beginning(text)}")
    return text or "", value[category] if category else None, category
