"""Prompts from a file: text, CSV, TSV, JSON lines, a JSON array or Parquet; on a disk, in a store or on the hub.

Supported layouts include: one prompt per line (the first 50,000 lines of DanceGRPO's assets/prompts.txt), a CSV file
with the header `prompt`, JSON arrays of objects with `prompt` (train.json and test.json of ymhao/HPDv2, the files of
MizzenAI/HPDv3), JSON arrays of prompts (HPSv2's benchmark), PartiPrompts.tsv, and DrawBench's columns `Prompts` and
`Category`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chunk_grpo.artifacts import Location
from chunk_grpo.config.prompts import PromptChecks, PromptFile
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.checks import check_prompts
from chunk_grpo.prompts.fields import ChosenFields, FieldNames
from chunk_grpo.prompts.findings import Findings, Kind, beginning, shortened
from chunk_grpo.prompts.hub import hub_file
from chunk_grpo.prompts.records import (
    UNREAD,
    Record,
    bounded,
    csv_records,
    json_array,
    json_lines,
    parquet_records,
    text_lines,
    tsv_records,
)
from chunk_grpo.prompts.rows import CheckedPrompts, PromptRow

_SUFFIXES = (".txt", ".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")


@dataclass(frozen=True)
class PromptSource:
    """A file of prompts."""

    location: Location
    """Path or URL; with `file`, the id of a data set on the hub."""
    file: str | None = None
    """File within the data set; None: `location` is the file itself."""
    revision: str | None = None
    """Revision of the data set; None: main."""
    fields: FieldNames = field(default_factory=FieldNames)
    """Names of the fields to read, for formats with fields."""
    limit: int | None = None
    """Number of records read from the beginning; None: all."""

    @classmethod
    def of(cls, file: PromptFile, key: str) -> PromptSource:
        """A file of params.yaml, by its key there."""
        fields = FieldNames(file.prompt_field, file.category_field, file.metadata_fields, file.picture_field, key)
        return cls(file.path, file.hub_file, file.revision, fields, file.limit)

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
        The prompts in the file's order, with a report. Their metadata have the record's other fields with their types,
        which are texts in CSV and TSV. For JSON arrays and Parquet files, line numbers are row numbers.

    Raises:
        DataError: The file is missing, has an unknown or another format, lacks a field, or has refused problems; up to
            20 are listed with line and value, the others counted.
    """
    suffix = Path(str(source.file or source.location)).suffix.lower()
    if suffix not in _SUFFIXES:
        what = suffix or ("a folder; name a file in it" if Path(source.name).is_dir() else "no ending")
        raise DataError(
            f"{source.name}: must end in {', '.join(_SUFFIXES)}, got {what}. Rename the file, or save it in one of "
            f"these formats; of a data set on the hub, name the file to read by {source.fields.setting('hub_file')}."
        )
    location = source.location
    if source.file is not None:
        location = hub_file(str(location), source.file, source.revision)
    records = _records(suffix, location, source)
    findings = Findings([source.name], "row" if suffix in (".json", ".parquet") else "line")
    reader = _Reader(source, findings)
    notes: list[str] = []

    def rows() -> Iterator[PromptRow | None]:
        # One by one: texts that are too long for prompts are not kept.
        for record in bounded(itertools.islice(records, source.limit), source.name):
            yield reader.row(*record)
        if source.limit is not None and next(records, None) is not None:
            notes.append(f"{source.name}: read up to the limit of {source.limit}; there is more")
        notes.extend(reader.notes())

    return check_prompts(rows(), rules, findings, notes)


def _records(suffix: str, location: Location, source: PromptSource) -> Iterator[Record]:
    if suffix == ".txt":
        return enumerate(text_lines(location), start=1)
    if suffix in (".csv", ".tsv"):
        return (csv_records if suffix == ".csv" else tsv_records)(location, source.fields, source.name)
    if suffix == ".json":
        return json_array(location, source.name)
    if suffix == ".parquet":
        return parquet_records(location, source.fields, source.name, source.limit)
    return json_lines(location)


class _Reader:
    """Makes prompts of a source's records, and remembers which fields they had."""

    def __init__(self, source: PromptSource, findings: Findings) -> None:
        self._source = source
        self._findings = findings
        self._chosen: dict[tuple[str, ...], ChosenFields] = {}
        self._unread: dict[str, None] = {}

    def row(self, line: int, value: object) -> PromptRow | None:
        """Prompt of a record; None if it cannot be read."""
        if self._source.fields.picture is None and (value is None or isinstance(value, str)):
            return PromptRow(value or "", "", {}, line, self._source.name)
        try:
            return self._of_fields(line, value)
        except ValueError as error:
            self._findings.add("records", "no prompt", self._source.name, line, str(error))
            return None

    def notes(self) -> list[str]:
        """Which fields scorers get, and which were not read."""
        kept = (name for chosen in self._chosen.values() for name in chosen.metadata)
        said = {
            "fields kept as metadata": dict.fromkeys(name for name in kept if name not in self._unread),
            "fields that were not read": self._unread,
        }
        return [f"{self._source.name}: {what}: {shortened(', '.join(names))}" for what, names in said.items() if names]

    def _of_fields(self, line: int, value: object) -> PromptRow | None:
        if isinstance(value, ValueError):
            raise value
        if not isinstance(value, Mapping):
            raise ValueError(f"must be text or an object with a field for the prompt, got {beginning(value)}")
        names = tuple(value)
        if names not in self._chosen:
            self._chosen[names] = self._source.fields.among(names)
        chosen = self._chosen[names]
        text, category = value[chosen.prompt], value[chosen.category] if chosen.category else None
        if not isinstance(text, str | None):
            raise ValueError(f"{chosen.prompt!r} must be text, got {beginning(text)}")
        if isinstance(category, bool) or not isinstance(category, str | int | None):
            kind: Kind = "category" if self._source.fields.category is None else "records"
            message = f"{chosen.category!r} must be text or a whole number, got {beginning(category)}"
            if kind == "records":
                message += f"; name another by {self._source.fields.setting('category_field')}, or set that to null"
            self._findings.add(kind, "category of another kind", self._source.name, line, message)
            if kind == "records":
                return None
            category = None
        metadata = {name: value[name] for name in chosen.metadata if value[name] is not UNREAD}
        picture = None if chosen.picture is None else value[chosen.picture]
        if chosen.picture is not None and not (isinstance(picture, str) and picture.strip()):
            raise ValueError(f"{chosen.picture!r} must be the path of a picture, got {beginning(picture)}")
        read = {chosen.prompt, chosen.category, chosen.picture, *metadata}
        self._unread.update(dict.fromkeys(name for name in names if name.strip() and name not in read))
        of = "" if category is None else str(category)
        return PromptRow(text or "", of, metadata, line, self._source.name, picture)
