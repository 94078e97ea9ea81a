"""Worker's side of the protocol between a stage and a scorer in another process. Standard library only.

Messages are JSON objects, one per line. The stage writes a start line; the worker answers with a `ready` line that
identifies it. Then each `score` line gets one `scores` or `error` line. The worker ends at the end of its input.

A worker script for an interpreter without chunk_grpo must be in the same folder as this file:

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
"""Version of the message format."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_BUFFER = 2**20  # bytes; a batch is megabytes large
_KINDS = ("ConfigError", "DataError", "TransientError")


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
    """Content of the start line.

    Attributes:
        key: Name of the scorer in params.yaml, for messages.
        settings: The scorer's section, as JSON values.
        measured: Settings that could change a score.
        device: Device such as cuda:1; None: the first GPU, else the CPU.
    """

    key: str
    settings: Mapping[str, Any]
    measured: Mapping[str, Any]
    device: str | None


@dataclass(frozen=True)
class Row:
    """An image with its prompt, metadata and group.

    Attributes:
        key: Row number in the batch and digest of image and prompt; the answer repeats it.
        prompt: Caption of the image.
        metadata: Parsed record of the prompts table's `metadata` column.
        group: Group number. Groupwise scorers compare images with the same number.
        pixels: height * width * 3 bytes, RGB, row by row: `Image.frombytes("RGB", (width, height), pixels)`.
    """

    key: str
    prompt: str
    metadata: Mapping[str, Any]
    group: int
    pixels: bytes


@dataclass(frozen=True)
class Batch:
    """Images to score.

    Attributes:
        id: Id of the message; the answer repeats it.
        height: Height of every image in pixels.
        width: Width of every image in pixels.
        rows: The images with their prompts.
    """

    id: str
    height: int
    width: int
    rows: Sequence[Row]


Answer = tuple[Any, Mapping[str, Any]]
"""Values in the order of the rows, and named details with a value per row: lists or arrays.

A list of values may contain a RefusedError in place of a value."""


def _nothing() -> None:
    """Default of `Worker.close`: nothing to release."""


@dataclass(frozen=True)
class Worker:
    """A scorer ready to answer.

    Attributes:
        name: Name of the measure and its model.
        version: Version of the scoring code. Increase it when the same settings could score the same image differently.
        score: Function that scores a batch of any size.
        needs: Inputs besides the images, from prompt and metadata.
        groupwise: Whether the scorer compares the images of a group.
        spec_hash: Hash that identifies the scorer; None: a digest of name, version and `measured`. `measured` omits
            models in local folders: a script that reads one must add its files to `settings_hash`, as
            hpsv3_original.py does.
        measured: Settings that could change a score; None: `measured` of the start line.
        packages: Distributions whose versions are reported.
        close: Releases the scorer's resources.
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
    """Answer messages on the standard streams until the input ends.

    Other prints to standard output are redirected to standard error, because standard output carries the protocol.

    Args:
        open_worker: Makes the scorer. An exception that it raises is sent to the stage.
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
    """Answer to the start line: the identity of a worker that has a spec hash."""
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
    """Answer to `batch`, with the message id, the keys of the images in order, and the scorer's spec hash."""
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
    """Values for JSON. An array keeps its shape, so that the stage can detect a wrong one."""
    return values.tolist() if hasattr(values, "tolist") else list(values)


def error_message(error: Exception) -> dict[str, Any]:
    """Message for an exception: kind (one of `_KINDS` or the class name), text, traceback, and `facts_of`."""
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
    """Facts that decide whether a retry may succeed: the error's classes, errno and HTTP status.

    The stage evaluates them in chunk_grpo.scorers.running.transient, with one rule for all interpreters.
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
    """Parse the start line.

    Raises:
        ConfigError: The stage uses another protocol.
        MalformedError: A key is missing or has a wrong type.
    """
    if message.get("protocol") != PROTOCOL:
        raise ConfigError(
            f"protocol mismatch: the worker uses {PROTOCOL}, the stage {message.get('protocol')}; install the same "
            "version of chunk-grpo on both sides"
        )
    device = message.get("device")
    if not (device is None or isinstance(device, str)):
        raise MalformedError(f"device: must be text or null, got {device!r}")
    settings, measured = _field(message, "settings", dict), _field(message, "measured", dict)
    return Start(_field(message, "key", str), settings, measured, device)


def read_batch(message: Mapping[str, Any]) -> Batch:
    """Parse a `score` message and verify images and prompts against their keys.

    Raises:
        MalformedError: A key is missing, has a wrong type, or the data changed in transit.
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
    """Key of an image: row number, and the first half of the SHA-256 of size, prompt and pixels."""
    digest = hashlib.sha256(f"{height} {width} ".encode())
    digest.update(json.dumps(prompt).encode())
    digest.update(pixels)
    return f"{number}-{digest.hexdigest()[:32]}"


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


def _write(stream: BinaryIO, line: bytes) -> None:
    stream.write(line)
    stream.flush()


def _take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Take over the protocol's streams. Later prints to standard output go to standard error."""
    sys.stdout.flush()
    questions = os.fdopen(os.dup(0), "rb", _BUFFER)
    answers = os.fdopen(os.dup(1), "wb", _BUFFER)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return questions, answers


def _die_with_parent() -> None:
    """On Linux, let the kernel kill this process with the stage. Elsewhere it ends between batches, with its input."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
