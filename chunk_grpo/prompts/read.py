"""Prompts from a file: text, CSV, TSV, JSON lines, a JSON array or Parquet; on a disk, in a store or on the hub.

Supported layouts include: one prompt per line (the first 50,000 lines of DanceGRPO's assets/prompts.txt), a CSV file
with the header `prompt`, JSON arrays of objects with `prompt` (train.json and test.json of ymhao/HPDv2, the files of
MizzenAI/HPDv3), JSON arrays of prompts (HPSv2's benchmark), PartiPrompts.tsv, and DrawBench's columns `Prompts` and
`Category`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

from chunk_grpo.artifacts import Location
from chunk_grpo.config.prompts import PromptChecks, PromptFile
from chunk_grpo.errors import ConfigError, DataError, install_command
from chunk_grpo.prompts.checks import check_prompts
from chunk_grpo.prompts.fields import ChosenFields, FieldNames
from chunk_grpo.prompts.findings import Findings, Kind, beginning, shortened
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


def read_prompt_file(file: PromptFile, rules: PromptChecks, key: str = "") -> CheckedPrompts:
    """Read a file of prompts and check it; `key` is its key in params.yaml, if it has one.

    An empty line, null or an empty text is an empty prompt; a final line end starts no further line. The prompts are in
    the file's order. Their metadata have the record's other fields with their types, which are texts in CSV and TSV.
    For JSON arrays and Parquet files, line numbers are row numbers. A DataError lists up to 20 refused problems with
    line and value, and counts the others.
    """
    source = file.source
    fields = FieldNames(file.prompt_field, file.category_field, file.metadata_fields, file.picture_field, key)
    suffix = Path(file.hub_file or file.path).suffix.lower()
    if suffix not in _SUFFIXES:
        what = suffix or ("a folder; name a file in it" if Path(source).is_dir() else "no ending")
        raise DataError(
            f"{source}: must end in {', '.join(_SUFFIXES)}, got {what}. Rename the file, or save it in one of these "
            f"formats; of a data set on the hub, name the file to read by {fields.setting('hub_file')}."
        )
    records = _records(suffix, local_file(file), fields, source, file.limit)
    findings = Findings([source], "row" if suffix in (".json", ".parquet") else "line")
    reader = _Reader(source, fields, findings)
    notes: list[str] = []

    def rows() -> Iterator[PromptRow | None]:
        # One by one: texts that are too long for prompts are not kept.
        for record in bounded(itertools.islice(records, file.limit), source):
            yield reader.row(*record)
        if file.limit is not None and next(records, None) is not None:
            notes.append(f"{source}: read up to the limit of {file.limit}; there is more")
        notes.extend(reader.notes())

    return check_prompts(rows(), rules, findings, notes)


def local_file(file: PromptFile) -> Location:
    """Path or URL of a file of prompts; of one on the hub its path in the hub's cache, downloaded if needed.

    ConfigError: huggingface_hub is not installed.
    """
    if file.hub_file is None:
        return file.path
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise ConfigError(
            f"{file.path}: reading from the hub needs huggingface_hub: {install_command('training')}, or give "
            "the path of a local copy."
        ) from error
    try:
        return Path(hf_hub_download(file.path, file.hub_file, repo_type="dataset", revision=file.revision))
    except Exception as error:  # its types depend on the network library of the installed huggingface_hub
        chosen = f" --revision {file.revision}" if file.revision else ""
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{file.path}: the file {file.hub_file} (revision {file.revision or 'main'}) is not in the hub's cache and "
            f"could not be downloaded ({type(error).__name__}: {detail}). Where there is a network: `hf download "
            f"{file.path} {file.hub_file} --repo-type dataset{chosen} --local-dir FOLDER`; then give "
            f"FOLDER/{file.hub_file} as the path, without a revision."
        ) from error


def _records(suffix: str, location: Location, fields: FieldNames, source: str, limit: int | None) -> Iterator[Record]:
    if suffix == ".txt":
        return enumerate(text_lines(location), start=1)
    if suffix in (".csv", ".tsv"):
        return (csv_records if suffix == ".csv" else tsv_records)(location, fields, source)
    if suffix == ".json":
        return json_array(location, source)
    if suffix == ".parquet":
        return parquet_records(location, fields, source, limit)
    return json_lines(location)


class _Reader:
    """Makes prompts of a source's records, and remembers which fields they had."""

    def __init__(self, source: str, fields: FieldNames, findings: Findings) -> None:
        self._source, self._fields, self._findings = source, fields, findings
        self._chosen: dict[tuple[str, ...], ChosenFields] = {}
        self._unread: dict[str, None] = {}

    def row(self, line: int, value: object) -> PromptRow | None:
        """Prompt of a record; None if it cannot be read."""
        if self._fields.picture is None and (value is None or isinstance(value, str)):
            return PromptRow(value or "", "", {}, line, self._source)
        try:
            return self._of_fields(line, value)
        except ValueError as error:
            self._findings.add("records", "no prompt", self._source, line, str(error))
            return None

    def notes(self) -> list[str]:
        """Which fields scorers get, and which were not read."""
        kept = (name for chosen in self._chosen.values() for name in chosen.metadata)
        said = {
            "fields kept as metadata": dict.fromkeys(name for name in kept if name not in self._unread),
            "fields that were not read": self._unread,
        }
        return [f"{self._source}: {what}: {shortened(', '.join(names))}" for what, names in said.items() if names]

    def _of_fields(self, line: int, value: object) -> PromptRow | None:
        if isinstance(value, ValueError):
            raise value
        if not isinstance(value, Mapping):
            raise ValueError(f"must be text or an object with a field for the prompt, got {beginning(value)}")
        names = tuple(value)
        if names not in self._chosen:
            self._chosen[names] = self._fields.among(names)
        chosen = self._chosen[names]
        text, category = value[chosen.prompt], value[chosen.category] if chosen.category else None
        if not isinstance(text, str | None):
            raise ValueError(f"{chosen.prompt!r} must be text, got {beginning(text)}")
        if isinstance(category, bool) or not isinstance(category, str | int | None):
            kind: Kind = "category" if self._fields.category is None else "records"
            message = f"{chosen.category!r} must be text or a whole number, got {beginning(category)}"
            if kind == "records":
                message += f"; name another by {self._fields.setting('category_field')}, or set that to null"
            self._findings.add(kind, "category of another kind", self._source, line, message)
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
        return PromptRow(text or "", of, metadata, line, self._source, picture)
