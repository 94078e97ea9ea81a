"""The worker's side of the protocol between a stage and a scorer in another process; standard library only.

Messages are JSON objects, one a line. The stage writes a start line, the worker answers `ready` with what it is; then
each `score` line is answered by one `scores` or `error` line. The worker ends at the end of its input.

A worker script for an interpreter without chunk_grpo lies in this folder, or has this file beside it:

    import lines

    def open_worker(start):
        judge = load_a_model(start.settings["model"]["checkpoint"], start.device)

        def score(batch):
            return [judge(row.prompt, row.pixels, batch.height, batch.width) for row in batch.rows], {}

        return lines.Worker("my-judge", 1, score)

    if __name__ == "__main__":
        lines.serve(open_worker)
"""

from __future__ import annotations

import binascii
import ctypes
import hashlib
import json
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, BinaryIO

PROTOCOL = 1
"""Raised whenever a message changes its meaning."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_BUFFER = 2**20  # bytes; a batch has megabytes
_KINDS = ("ConfigError", "DataError", "TransientError")


class DataError(Exception):
    """An input cannot be judged, or a file is missing: another try would end alike."""


class RefusedError(DataError):
    """An image will not be judged: returned in the place of its value, with the reason."""


class ConfigError(Exception):
    """The settings are wrong, or a package is not installed."""


class TransientError(Exception):
    """No answer; another try may get one."""


class MalformedError(ValueError):
    """A message is not what the protocol says."""


@dataclass(frozen=True)
class Start:
    """What a worker is told first.

    Attributes:
        key: The scorer's name in params.yaml, for messages.
        settings: Its section, as JSON has it.
        measured: The part of it that could move a score.
        device: Such as cuda:1; None: the first GPU, else the CPU.
    """

    key: str
    settings: Mapping[str, Any]
    measured: Mapping[str, Any]
    device: str | None


@dataclass(frozen=True)
class Row:
    """An image with what is known of it.

    Attributes:
        key: Its number in the batch and a digest of picture and prompt; the answer names it.
        prompt: Its caption.
        metadata: Of the prompts table, parsed.
        group: Images that are to be compared share theirs.
        pixels: height * width * 3 bytes, RGB, row by row: `Image.frombytes("RGB", (width, height), pixels)`.
    """

    key: str
    prompt: str
    metadata: Mapping[str, Any]
    group: int
    pixels: bytes


@dataclass(frozen=True)
class Batch:
    """What is asked.

    Attributes:
        id: Of the question; the answer names it.
        height: Of every image.
        width: Of every image.
        rows: The images.
    """

    id: str
    height: int
    width: int
    rows: Sequence[Row]


Answer = tuple[Any, Mapping[str, Any]]
"""A value for each row, in their order, and named details, each with a value for each row: lists or arrays.

A list may hold a RefusedError in the place of a value."""


def _nothing() -> None:
    """Nothing is held."""


@dataclass(frozen=True)
class Worker:
    """A scorer that is ready.

    Attributes:
        name: What is measured, with the model that does it.
        version: Raised whenever the same settings could score the same image differently.
        score: Scores a batch of any size.
        needs: What it reads besides the images: of prompt, metadata.
        groupwise: Whether it compares the images of a group.
        spec_hash: Identifies what is measured; None: a digest of name, version and `measured`, which names no local
            folder: a script that reads one adds its files to `settings_hash`, as hpsv3_original.py does.
        measured: The settings that could move a score; None: those of the start line.
        packages: Distributions whose versions are told.
        close: Gives back what is held.
    """

    name: str
    version: int
    score: Callable[[Batch], Answer]
    needs: Sequence[str] = ("prompt", "metadata")
    groupwise: bool = False
    spec_hash: str | None = None
    measured: Mapping[str, Any] | None = None
    packages: Sequence[str] = ()
    close: Callable[[], object] = _nothing


def serve(open_worker: Callable[[Start], Worker]) -> None:
    """Be a worker until the input ends.

    Whatever is printed meanwhile goes to the standard error: the standard output belongs to the protocol.

    Args:
        open_worker: Makes the scorer; what it raises is told to the stage.
    """
    _die_with_parent()
    questions, answers = _take_streams()
    try:
        start = read_start(read_message(questions.readline()))
        worker = open_worker(start)
        if worker.measured is None:
            worker = replace(worker, measured=start.measured)
        if worker.spec_hash is None:
            worker = replace(worker, spec_hash=settings_hash(worker.name, worker.version, start.measured))
        ready = write_message(ready_message(worker))
    except Exception as error:  # the stage raises it
        _write(answers, write_message(error_message(error)))
        return
    _write(answers, ready)
    for line in questions:
        _write(answers, _answer(worker, line))
    worker.close()


def _answer(worker: Worker, line: bytes) -> bytes:
    question = None
    try:
        batch = read_batch(read_message(line))
        question = batch.id
        values, details = worker.score(batch)
        return write_message(scores_message(batch, values, details, worker.spec_hash))
    except Exception as error:  # the stage raises it
        return write_message({**error_message(error), "id": question})


def ready_message(worker: Worker) -> dict[str, Any]:
    """What a worker with a spec hash is: the answer to the start line."""
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


def scores_message(
    batch: Batch, values: Any, details: Mapping[str, Any], spec_hash: str | None
) -> dict[str, Any]:
    """The answer to `batch`: it names the question, the images in their order, and what judged them."""
    given = _plain(values)
    refused = {str(row): str(value) for row, value in enumerate(given) if isinstance(value, RefusedError)}
    return {
        "type": "scores",
        "id": batch.id,
        "spec_hash": spec_hash,
        "keys": [row.key for row in batch.rows],
        "values": [None if str(row) in refused else value for row, value in enumerate(given)]
        if refused
        else given,
        "refused": refused,
        "details": {name: _plain(detail) for name, detail in details.items()},
    }


def _plain(values: Any) -> Any:
    """As JSON takes it; an array keeps its shape, so that a wrong one is seen."""
    return values.tolist() if hasattr(values, "tolist") else list(values)


def error_message(error: Exception) -> dict[str, Any]:
    """An exception: its kind if it is one of the three that a user can mend, its text, traceback and facts."""
    names = [kind.__name__ for kind in type(error).__mro__]
    kinds = [kind for kind in names if kind in _KINDS]
    return {
        "type": "error",
        "kind": kinds[0] if kinds else names[0],
        "message": str(error),
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        **facts_of(error),
    }


def facts_of(error: BaseException) -> dict[str, Any]:
    """What tells whether another try may mend an error: its classes, the system's number, the HTTP status.

    The stage judges them (chunk_grpo.scorers.transient), by one rule for all interpreters.
    """
    number, response = getattr(error, "errno", None), getattr(error, "response", None)
    found = [getattr(error, name, None) for name in ("status_code", "status")]
    found += [getattr(response, name, None) for name in ("status_code", "status")]
    return {
        "classes": [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__],
        "errno": number if isinstance(number, int) else None,
        "status": next((status for status in found if isinstance(status, int)), None),
    }


def read_message(line: bytes) -> dict[str, Any]:
    """A line as a JSON object.

    Raises:
        MalformedError: It is none.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise MalformedError(f"must be a JSON object, got {type(message).__name__}")
    return message


def write_message(message: Mapping[str, Any]) -> bytes:
    """A message as a line. Floats keep every bit; NaN and infinities are written as Python's json writes them."""
    return json.dumps(message, default=float).encode("ascii") + b"\n"  # float: of NumPy's and torch's numbers


def read_start(message: Mapping[str, Any]) -> Start:
    """The start line.

    Raises:
        ConfigError: The stage speaks another protocol.
        MalformedError: Something is missing.
    """
    if message.get("protocol") != PROTOCOL:
        raise ConfigError(
            f"the worker speaks protocol {PROTOCOL}, the stage {message.get('protocol')}: take both from one version "
            "of chunk-grpo"
        )
    device = message.get("device")
    if not (device is None or isinstance(device, str)):
        raise MalformedError(f"device: must be text or null, got {device!r}")
    settings, measured = _field(message, "settings", dict), _field(message, "measured", dict)
    return Start(_field(message, "key", str), settings, measured, device)


def read_batch(message: Mapping[str, Any]) -> Batch:
    """A question, whose pictures and prompts are what their keys say.

    Raises:
        MalformedError: Something is missing, of another type, or was changed on the way.
    """
    height, width = _field(message, "height", int), _field(message, "width", int)
    rows = [_read_row(number, height, width, row) for number, row in enumerate(_field(message, "rows", list))]
    return Batch(_field(message, "id", str), height, width, rows)


def _read_row(number: int, height: int, width: int, record: Any) -> Row:
    where = f"rows[{number}]"
    if not isinstance(record, dict):
        raise MalformedError(f"{where}: must be an object, got {type(record).__name__}")
    try:
        pixels = binascii.a2b_base64(_field(record, "pixels", str, where))
    except ValueError as error:
        raise MalformedError(f"{where}.pixels: not base64: {error}") from None
    if len(pixels) != height * width * 3:
        raise MalformedError(f"{where}.pixels: must be {height} * {width} * 3 bytes, got {len(pixels)}")
    key, prompt = _field(record, "key", str, where), _field(record, "prompt", str, where)
    if key != image_key(number, height, width, pixels, prompt):
        raise MalformedError(
            f"{where}.key: is not that of this picture and prompt; something changed on the way"
        )
    return Row(
        key, prompt, _field(record, "metadata", dict, where), _field(record, "group", int, where), pixels
    )


def _field(record: Mapping[str, Any], name: str, kind: type, where: str = "") -> Any:
    path = f"{where}.{name}" if where else name
    if name not in record:
        raise MalformedError(f"{path}: is missing")
    value = record[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise MalformedError(f"{path}: must be {kind.__name__}, got {type(value).__name__}")
    return value


def image_key(number: int, height: int, width: int, pixels: bytes | memoryview, prompt: str) -> str:
    """Row number and the first half of the SHA-256 of size, prompt and pixels."""
    digest = hashlib.sha256(f"{height} {width} ".encode())
    digest.update(json.dumps(prompt).encode())
    digest.update(pixels)
    return f"{number}-{digest.hexdigest()[:32]}"


def settings_hash(name: str, version: int, measured: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits of what a script measures."""
    identity = json.dumps([name, version, dict(measured)], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The installed ones with their versions."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # an optional one
            continue
    return found


def _write(stream: BinaryIO, line: bytes) -> None:
    stream.write(line)
    stream.flush()


def _take_streams() -> tuple[BinaryIO, BinaryIO]:
    """The protocol's streams; what others print to the standard output goes to the standard error from now on."""
    sys.stdout.flush()
    questions = os.fdopen(os.dup(0), "rb", _BUFFER)
    answers = os.fdopen(os.dup(1), "wb", _BUFFER)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return questions, answers


def _die_with_parent() -> None:
    """On Linux the kernel ends this process with the stage; elsewhere the end of the input does, between batches."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
