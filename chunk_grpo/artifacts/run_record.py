"""`run.json`: the run of the published files, with size and hash to verify each file. Errors as in io.py."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts.io import read_json, read_text, write_json
from chunk_grpo.artifacts.storage import Location, join
from chunk_grpo.artifacts.table_checks import REWRITE_IT
from chunk_grpo.errors import DataError

RECORD = "run.json"
RECORD_SCHEMA = "chunk_grpo.published_run/1"


@dataclass(frozen=True)
class RunFacts:
    """Run that made the files."""

    preset: str
    """Name of the preset, and of the folder below the destination."""
    commit: str
    """Commit of the code."""
    flow_run: str
    """Name of the flow run, or of another origin of the files."""
    overrides: tuple[str, ...] = ()
    """Changes of the preset's parameters."""


@dataclass(frozen=True)
class PublishedFile:
    """Size in bytes and SHA-256 in hexadecimal digits of a published file."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> PublishedFile:
        """Size and hash of a local file; OSError if it cannot be read."""
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256")
            return cls(stream.tell(), digest.hexdigest())


NO_RUN = PublishedFile(0, "")
"""Entry of a file that may exist but belongs to no run: being overwritten or removed, or left by a kill."""


@dataclass(frozen=True)
class RunRecord:
    """Content of `run.json`."""

    run: RunFacts
    """Run that made the files."""
    published_at: str
    """Start of the publication, UTC, ISO 8601 with microseconds."""
    files: Mapping[str, PublishedFile]
    """Published files, by path below the preset's folder; NO_RUN while a file is not of the run."""

    @property
    def complete(self) -> bool:
        """Whether all files of the run are published; false during copying and after an interruption."""
        return NO_RUN not in self.files.values()


def read_record(location: Location) -> RunRecord:
    """Read a `run.json` that `publish` wrote."""
    remedy = "Choose another destination, or delete this file: all files are then copied again."
    try:
        found: Any = read_json(location)
    except DataError as error:
        raise DataError(str(error).replace(REWRITE_IT, remedy)) from error
    try:
        if found["schema"] != RECORD_SCHEMA:
            raise DataError(f"{location}: must be {RECORD_SCHEMA}, got {found['schema']}. {remedy}")
        return RunRecord(
            run=RunFacts(found["preset"], found["commit"], found["flow_run"], tuple(found.get("overrides", ()))),
            published_at=str(found["published_at"]),
            files={f["path"]: PublishedFile(int(f["size"]), str(f["sha256"])) for f in found["files"]},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{location}: must be {RECORD_SCHEMA}, which chunk_grpo.artifacts.publishing writes; got another file "
            f"({type(error).__name__}: {error}). {remedy}"
        ) from error


def published_text(folder: Location, record: RunRecord, name: str) -> str:
    """Text of a published file, by its path in a preset's folder; DataError unless it is of the record's run."""
    text = read_text(join(folder, name)) if record.complete else ""
    found = PublishedFile(len(text.encode()), hashlib.sha256(text.encode()).hexdigest())
    if found != record.files.get(name):
        raise DataError(
            f"{join(folder, name)}: must be of the run {record.run.flow_run}, which {RECORD} names, got another file: "
            "a publication is in progress or was interrupted. Run `chunk-grpo/full` of this preset, then this."
        )
    return text


def write_record(record: RunRecord, location: Location) -> None:
    """Write a `run.json`."""
    files = [{"path": path, **asdict(file)} for path, file in sorted(record.files.items())]
    identity = {"schema": RECORD_SCHEMA, **asdict(record.run), "published_at": record.published_at}
    write_json({**identity, "complete": record.complete, "files": files}, location)
