"""`run.json`: of which run the published files are, and how to tell that one of them belongs to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from chunk_grpo.artifacts.io import REWRITE_IT, read_json, read_text, write_json
from chunk_grpo.artifacts.storage import Location, join
from chunk_grpo.errors import DataError

RECORD = "run.json"
RECORD_SCHEMA = "chunk_grpo.published_run/1"


@dataclass(frozen=True)
class RunFacts:
    """Of which run the files are.

    Attributes:
        preset: Names the folder below the destination.
        commit: Of the code.
        flow_run: Name of the flow run, or of whatever else made them.
    """

    preset: str
    commit: str
    flow_run: str


@dataclass(frozen=True)
class PublishedFile:
    """What a published file must have, size in bytes and SHA-256 in hexadecimal digits, to belong to the run."""

    size: int
    sha256: str


@dataclass(frozen=True)
class RunRecord:
    """What `run.json` holds.

    Attributes:
        publication: Differs for each publication.
        run: Of which run the files are.
        published_at: UTC, ISO 8601.
        complete: Whether all files of the run are there; false while they are copied, or when that was cut short.
        files: Those that are there, by their path below the preset's folder.
        older: Paths that may lie there and belong to no run: being overwritten or removed, or left after a kill.
    """

    publication: str
    run: RunFacts
    published_at: str
    complete: bool
    files: Mapping[str, PublishedFile]
    older: tuple[str, ...]


def read_record(location: Location) -> RunRecord:
    """Read a `run.json` that `publish` wrote.

    Raises:
        DataError: the file is missing, unreadable, or was not written by `publish`.
        TransientError: the object store does not answer.
    """
    remedy = "Choose another destination, or delete this file: all files are then copied again."
    try:
        found: Any = read_json(location)
    except DataError as error:
        raise DataError(str(error).replace(REWRITE_IT, remedy)) from error
    try:
        if found["schema"] != RECORD_SCHEMA:
            raise DataError(f"{location}: must be {RECORD_SCHEMA}, got {found['schema']}. {remedy}")
        return RunRecord(
            publication=str(found["publication"]),
            run=RunFacts(found["preset"], found["commit"], found["flow_run"]),
            published_at=str(found["published_at"]),
            complete=bool(found["complete"]),
            files={f["path"]: PublishedFile(int(f["size"]), str(f["sha256"])) for f in found["files"]},
            older=tuple(map(str, found["older"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{location}: must be {RECORD_SCHEMA}, which chunk_grpo.artifacts.publishing writes; got another file "
            f"({type(error).__name__}: {error}). {remedy}"
        ) from error


def published_text(folder: Location, record: RunRecord, name: str) -> str:
    """The text of a published file of the record's run.

    Args:
        folder: Of the preset.
        record: Its `run.json`.
        name: Path of the file below the folder.

    Raises:
        DataError: the file is missing, or of another run than the record.
        TransientError: the object store does not answer.
    """
    text, expected = read_text(join(folder, name)), record.files.get(name)
    found = PublishedFile(len(text.encode()), hashlib.sha256(text.encode()).hexdigest())
    if not record.complete or found != expected:
        raise DataError(
            f"{join(folder, name)}: must be of the run {record.run.flow_run}, which {RECORD} names, got another file: "
            "a run is being published now, or that was cut short. Run `chunk-grpo/full` of this preset, then this."
        )
    return text


def write_record(record: RunRecord, location: Location) -> None:
    """Write a `run.json`.

    Raises:
        DataError: it cannot be written.
        TransientError: the object store does not answer.
    """
    files = [{"path": path, **asdict(file)} for path, file in sorted(record.files.items())]
    facts = {
        "schema": RECORD_SCHEMA,
        **asdict(record.run),
        "published_at": record.published_at,
        "complete": record.complete,
    }
    rest = {"publication": record.publication, "older": list(record.older), "files": files}
    write_json({**facts, **rest}, location)
