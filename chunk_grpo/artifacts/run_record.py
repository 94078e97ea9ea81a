"""`run.json`: the run of the published files, with size and hash to verify each file."""

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
    """Run that made the files.

    Attributes:
        preset: Name of the preset, and of the folder below the destination.
        commit: Commit of the code.
        flow_run: Name of the flow run, or of another origin of the files.
    """

    preset: str
    commit: str
    flow_run: str


@dataclass(frozen=True)
class PublishedFile:
    """Size in bytes and SHA-256 in hexadecimal digits of a published file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class RunRecord:
    """Content of `run.json`.

    Attributes:
        publication: Unique id of the publication.
        run: Run that made the files.
        published_at: Time of publication, UTC, ISO 8601.
        complete: Whether all files of the run are published; false during copying and after an interruption.
        files: Published files, by path below the preset's folder.
        older: Paths of files that may exist but belong to no run: being overwritten or removed, or left by a kill.
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
        DataError: The file is missing, unreadable, or was not written by `publish`.
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
    """Read the text of a published file of the record's run.

    Args:
        folder: Folder of the preset.
        record: Content of its `run.json`.
        name: Path of the file below the folder.

    Raises:
        DataError: The file is missing, or is not of the record's run.
        TransientError: the object store does not answer.
    """
    text, expected = read_text(join(folder, name)), record.files.get(name)
    found = PublishedFile(len(text.encode()), hashlib.sha256(text.encode()).hexdigest())
    if not record.complete or found != expected:
        raise DataError(
            f"{join(folder, name)}: must be of the run {record.run.flow_run}, which {RECORD} names, got another file: "
            "a publication is in progress or was interrupted. Run `chunk-grpo/full` of this preset, then this."
        )
    return text


def write_record(record: RunRecord, location: Location) -> None:
    """Write a `run.json`.

    Raises:
        DataError: The file cannot be written.
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
