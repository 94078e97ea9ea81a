"""Read users' files: text with line numbers, and JSON with strict errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chunk_grpo.artifacts import Location, input_file
from chunk_grpo.artifacts.storage import is_remote
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.findings import Findings, beginning

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_BAD_BYTES = re.compile("[\udc80-\udcff]")
"""Characters to which surrogateescape decodes bytes that are not UTF-8."""

_SPACE = re.compile(r"[ \t\r\n]*")
"""JSON's whitespace."""


INVALID: Final = object()
"""Value of an unreadable record, whose problem is already in the findings."""


@dataclass(frozen=True)
class Record:
    """A value of a file.

    Attributes:
        value: Text, a mapping of field names to values, None for an empty line or a missing value, INVALID, or any
            other JSON value.
        line: Line where the value begins, from 1.
        column: Character of the line where the value begins, from 1.
    """

    value: object
    line: int
    column: int = 1


def require_file(location: Location) -> None:
    """Check that a local path is a regular file.

    Raises:
        DataError: The path does not exist or is not a regular file; the message names the remedy.
    """
    if is_remote(location) or Path(location).is_file():
        return
    path = Path(location)
    if str(location).startswith("~"):
        reason = "no such file: ~ is not expanded. Write the whole path."
    elif path.is_dir():
        reason = (
            "a folder, but a file is needed. Name a file in it; for a data set on the hub, set `hub_file`."
        )
    elif path.exists():
        reason = "not a regular file, but a pipe or a device. Save its content in a file."
    elif path.is_symlink():
        reason = "a link to itself or to a missing file. Fix the link or the path."
    else:
        reason = "no such file. Fix the path; for a data set on the hub, set `hub_file` as well."
    raise DataError(f"{location}: {reason}")


def read_bytes(location: Location) -> bytes:
    """Read the content of a local file or a URL.

    Raises:
        DataError: the file is missing or cannot be read.
        TransientError: the object store does not answer.
    """
    require_file(location)
    with input_file(location) as path:
        return path.read_bytes()


def decoded(content: bytes, source: str, findings: Findings) -> str:
    """Decode UTF-8 with or without a byte order mark; every line with invalid bytes becomes a finding.

    Raises:
        DataError: the file is UTF-16 or UTF-32.
    """
    if content.startswith(_UTF16):
        raise DataError(
            f"{source}, line 1: must be UTF-8, got the byte 0x{content[0]:02x}, with which UTF-16 begins. "
            "Save the file as UTF-8."
        )
    text = content.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if not _BAD_BYTES.search(text):
        return text
    for number, line in enumerate(split_lines(text), start=1):
        if bad := _BAD_BYTES.search(line):
            byte, raw = ord(bad.group()) - 0xDC00, line.encode("utf-8", "surrogateescape")
            message = (
                f"must be UTF-8, got the byte 0x{byte:02x} at character {bad.start() + 1}: {beginning(raw)}"
            )
            findings.add("encoding", "wrong encoding", source, number, message, bad.start() + 1)
    # These lines are rejected; guessed characters avoid further findings about duplicates or control characters.
    return _BAD_BYTES.sub(_guessed, text)


def split_lines(text: str) -> list[str]:
    r"""Split a text into lines without \n or \r\n at their ends; a final \n starts no further line.

    str.splitlines would also split at ten other characters, so line numbers would differ from an editor's.
    """
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def json_lines(text: str, source: str, findings: Findings) -> Iterator[Record]:
    """Yield the value of each line, None for an empty line. Invalid JSON becomes a finding."""
    for number, line in enumerate(split_lines(text), start=1):
        if not line.strip():
            yield Record(None, number)
            continue
        try:
            value = _DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            findings.add("record", "no JSON", source, number, f"{_reason(error)}: {beginning(line)}")
            value = INVALID
        yield Record(value, number)


def json_array(text: str, source: str, findings: Findings) -> Iterator[Record]:
    """Yield the values of a JSON array with the lines on which they begin; stop at the first problem.

    Raises:
        DataError: The file is not an array.
    """
    at = _after_space(text, 0)
    if text[at : at + 1] != "[":
        raise DataError(
            f"{source}, line {text.count(chr(10), 0, at) + 1}: must be a JSON array of prompts, got "
            f"{beginning(text[at : at + 200])}"
        )
    at = _after_space(text, at + 1)
    if text[at : at + 1] == "]":
        _nothing_follows(text, at + 1, source, findings)
        return
    places = _Places(text)
    while True:
        line, column = places.of(at)
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            where = (error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) else (line, column)
            message = f"{_reason(error)}; reading ends here"
            findings.add("record", "no JSON", source, where[0], message, where[1])
            yield Record(INVALID, line, column)
            return
        yield Record(value, line, column)
        at = _after_space(text, at)
        if text[at : at + 1] == "]":
            _nothing_follows(text, at + 1, source, findings)
            return
        if text[at : at + 1] != ",":
            found = beginning(text[at : at + 200]) if at < len(text) else "the end of the file"
            message = f"must continue with , or ], got {found}; reading ends here"
            line, column = places.of(at)
            findings.add("record", "no JSON", source, line, message, column)
            yield Record(INVALID, line, column)
            return
        at = _after_space(text, at + 1)


class _Places:
    """Line and column of ascending positions, in one pass over the text."""

    def __init__(self, text: str) -> None:
        self._text, self._seen, self._line, self._begin = text, 0, 1, 0

    def of(self, at: int) -> tuple[int, int]:
        ended = self._text.count("\n", self._seen, at)
        if ended:
            self._line += ended
            self._begin = self._text.rindex("\n", self._seen, at) + 1
        self._seen = at
        return self._line, at - self._begin + 1


def _nothing_follows(text: str, at: int, source: str, findings: Findings) -> None:
    at = _after_space(text, at)
    if at < len(text):
        message = f"must end after the array, got {beginning(text[at : at + 200])}"
        findings.add("record", "no JSON", source, text.count("\n", 0, at) + 1, message)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _guessed(bad: re.Match[str]) -> str:
    return bytes([ord(bad.group()) - 0xDC00]).decode("cp1252", "ignore") or "?"


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Reject repeated keys in an object; json would silently keep the last one."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is repeated")
    return made


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON value")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON ({error.msg}, character {error.colno})"
    return f"no JSON ({error})"
