"""Messages between a stage and a scorer in another process. Standard library only."""

from __future__ import annotations

import binascii
import hashlib
import json
import platform
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PROTOCOL = 3
"""Version of the message format."""

KINDS = ("ConfigError", "DataError", "TransientError")
"""Errors that keep their kind on their way to the stage."""


class DataError(Exception):
    """An input cannot be judged, or a file is missing. A retry would fail alike."""


class RefusedError(DataError):
    """Reason why an image is refused; returned in place of its value."""


class ConfigError(Exception):
    """The settings are wrong, or a package is not installed."""


class TransientError(Exception):
    """No answer; a retry may succeed."""


class MalformedError(ValueError):
    """A message does not follow the protocol."""


@dataclass(frozen=True)
class Start:
    """Content of the start message."""

    key: str
    """Name of the scorer in params.yaml, for messages."""
    settings: Mapping[str, Any]
    """The scorer's section, as JSON values."""
    measured: Mapping[str, Any]
    """Settings that could change a score."""
    device: str | None
    """Device such as cuda:1; None: the first GPU, else the CPU."""


@dataclass(frozen=True)
class Row:
    """An image with its prompt, metadata and group."""

    prompt: str
    """Caption of the image."""
    metadata: Mapping[str, Any]
    """Parsed record of the prompts table's `metadata` column."""
    group: int
    """Group number. Groupwise scorers compare images with the same number."""
    pixels: bytes
    """Height * width * 3 bytes, RGB, row by row: `Image.frombytes("RGB", (width, height), pixels)`."""
    source: bytes | None = None
    """Picture of which the image is an edit, as many bytes; None: the prompts edit none."""


@dataclass(frozen=True)
class Batch:
    """Images to score."""

    id: str
    """Id of the message; the answer repeats it."""
    height: int
    """Height of every image in pixels."""
    width: int
    """Width of every image in pixels."""
    rows: Sequence[Row]
    """The images with their prompts."""


Answer = tuple[Any, Mapping[str, Any]]
"""Values in the order of the rows, and named details with a value per row: lists or arrays.

A list of values may contain a RefusedError in place of a value."""


@dataclass(frozen=True)
class Worker:
    """A scorer ready to answer."""

    name: str
    """Name of the measure and its model."""
    version: int
    """Version of the scoring code. Increase it when the same settings could score the same image differently."""
    score: Callable[[Batch], Answer]
    """Function that scores a batch of any size."""
    needs: Sequence[str] = ("prompt", "metadata")
    """Inputs besides the images, from prompt, metadata and sources."""
    groupwise: bool = False
    """Whether the scorer compares the images of a group."""
    spec_hash: str | None = None
    """Hash that identifies the scorer; None: `settings_hash` of name, version and `measured`."""
    measured: Mapping[str, Any] | None = None
    """Settings that could change a score; None: `measured` of the start message, which omits models in local folders:
    a script that reads one must add its files to `settings_hash`."""
    packages: Sequence[str] = ()
    """Distributions whose versions are reported."""
    close: Callable[[], object] = lambda: None
    """Releases the scorer's resources."""


def identified(worker: Worker, start: Start) -> Worker:
    """The worker, with what it leaves to the start message: spec hash and settings that could change a score."""
    measured = start.measured if worker.measured is None else worker.measured
    spec_hash = worker.spec_hash or settings_hash(worker.name, worker.version, start.measured)
    return replace(worker, measured=measured, spec_hash=spec_hash)


def ready_message(worker: Worker) -> dict[str, Any]:
    """Identity of a worker that has a spec hash."""
    return {
        "type": "ready",
        "protocol": PROTOCOL,
        "name": worker.name,
        "version": worker.version,
        "needs": sorted(worker.needs),
        "groupwise": worker.groupwise,
        "spec_hash": worker.spec_hash,
        "measured": worker.measured,
        "python": platform.python_version(),
        "packages": versions(worker.packages),
    }


def scores_message(question: str, answer: Answer, spec_hash: str | None) -> dict[str, Any]:
    """Answer to the batch with the id `question`."""
    values = _plain(answer[0])
    refused = {row: str(value) for row, value in enumerate(values) if isinstance(value, RefusedError)}
    return {
        "type": "scores",
        "id": question,
        "spec_hash": spec_hash,
        "values": [None if row in refused else value for row, value in enumerate(values)],
        "refused": refused,
        "details": {name: _plain(detail) for name, detail in answer[1].items()},
    }


def _plain(values: Any) -> Any:
    """Values for JSON. An array keeps its shape, so that the stage can detect a wrong one."""
    return values.tolist() if hasattr(values, "tolist") else list(values)


def error_message(error: BaseException, question: str | None = None) -> dict[str, Any]:
    """Message for an exception: kind (one of `KINDS` or the class name), text, traceback, and `facts_of`."""
    names = [kind.__name__ for kind in type(error).__mro__]
    return {
        "type": "error",
        "id": question,
        "kind": next((name for name in names if name in KINDS), names[0]),
        "message": str(error),
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        **facts_of(error),
    }


def facts_of(error: BaseException) -> dict[str, Any]:
    """Facts that decide whether a retry may succeed: the error's classes, errno and HTTP status.

    The stage evaluates them in chunk_grpo.scorers.running.retry, with one rule for all interpreters.
    """
    number, response = getattr(error, "errno", None), getattr(error, "response", None)
    found = [getattr(each, name, None) for each in (error, response) for name in ("status_code", "status")]
    return {
        "classes": [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__],
        "errno": number if isinstance(number, int) else None,
        "status": next((status for status in found if isinstance(status, int)), None),
    }


def read_message(line: bytes | bytearray) -> dict[str, Any]:
    """Parse a line as a JSON object.

    Raises:
        MalformedError: The line is no JSON object.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise MalformedError(f"must be a JSON object, got {type(message).__name__}")
    return message


def write_message(message: Mapping[str, Any]) -> bytes:
    """Encode a message as a line. Floats keep every bit; NaN and infinities are written as Python's json does."""
    return json.dumps(message, default=float).encode("ascii") + b"\n"  # float: for NumPy and torch numbers


def read_start(message: Mapping[str, Any]) -> Start:
    """Parse the start message.

    Raises:
        ConfigError: The stage uses another protocol.
        MalformedError: A key is missing.
    """
    if message.get("protocol") != PROTOCOL:
        raise ConfigError(
            f"protocol mismatch: the worker uses {PROTOCOL}, the stage {message.get('protocol')}; install the same "
            "version of chunk-grpo on both sides"
        )
    try:
        return Start(message["key"], message["settings"], message["measured"], message["device"])
    except KeyError as error:
        raise MalformedError(f"{error.args[0]}: is missing") from None


def read_batch(message: Mapping[str, Any]) -> Batch:
    """Parse a `score` message.

    Raises:
        MalformedError: A key is missing or has a wrong type, there is no image, or an image has another size than the
            message says.
    """
    try:
        height, width, question = message["height"], message["width"], message["id"]
        if message["type"] != "score":
            raise ValueError(f"type must be 'score', got {message['type']!r}")
        if not (type(height) is type(width) is int and height > 0 and width > 0):
            raise ValueError(f"height and width must be whole numbers above 0, got {height!r} and {width!r}")
        if not (isinstance(question, str) and isinstance(message["rows"], list) and message["rows"]):
            raise ValueError("id must be a text, and rows a list of at least one image")
        rows = [_read_row(row, number) for number, row in enumerate(message["rows"])]
        for number, row in enumerate(rows):
            if len(row.pixels) != height * width * 3:
                raise ValueError(f"row {number} has {len(row.pixels)} bytes, not {height} * {width} * 3")
            if (row.source is None) != (rows[0].source is None) or len(row.source or row.pixels) != len(row.pixels):
                raise ValueError(f"row {number} must have a source of {height} * {width} * 3 bytes, or no row has one")
        return Batch(question, height, width, rows)
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedError(f"no batch of images: {type(error).__name__}: {error}") from None


def _read_row(row: Mapping[str, Any], number: int) -> Row:
    prompt, metadata, group = row["prompt"], row["metadata"], row["group"]
    if not (isinstance(prompt, str) and isinstance(metadata, dict) and type(group) is int):
        raise ValueError(f"row {number} must have a text as prompt, an object as metadata and a whole number as group")
    source = None if "source" not in row else binascii.a2b_base64(row["source"])
    return Row(prompt, metadata, group, binascii.a2b_base64(row["pixels"]), source)


def settings_hash(name: str, version: int, measured: Mapping[str, Any]) -> str:
    """Hash of sixteen hexadecimal digits of a worker script's name, version and settings."""
    identity = json.dumps([name, version, dict(measured)], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Installed packages with their versions."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # optional package
            continue
    return found
