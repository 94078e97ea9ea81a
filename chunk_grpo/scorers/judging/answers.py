"""File of a judge's answers, each written on arrival, so that no paid request is repeated."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from chunk_grpo.errors import DataError

_LOG = logging.getLogger(__name__)


class AnswerFile:
    """JSON lines {"key": ..., "label": ..., "answer": ...}. Several processes of a host may share the file."""

    def __init__(self, path: Path) -> None:
        """Open nothing yet; the first use creates `path`."""
        self.path = path

    def read(self, check: Callable[[str], object]) -> dict[str, str]:
        """Key to answer; of several answers with the same key, the first.

        A truncated last line, as after a kill, is dropped. DataError names another line that is damaged, or whose
        answer makes `check` raise ValueError.
        """
        with self._locked() as stream:
            lines = stream.read().splitlines()
        answers: dict[str, str] = {}
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                key, answer = record["key"], record["answer"]
                if not isinstance(key, str) or not isinstance(answer, str):
                    raise TypeError("key and answer must be strings")
                check(answer)
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{self.path}, line {number}: no valid answer of this judge ({type(error).__name__}: {error}). "
                    "Delete the line to have its image judged again."
                ) from error
            answers.setdefault(key, answer)
        return answers

    def append(self, key: str, label: str, answer: str) -> None:
        """Add an answer; the label describes its question for readers of the file."""
        line = json.dumps({"key": key, "label": label, "answer": answer})
        with self._locked() as stream:
            stream.write(line.encode() + b"\n")

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """Open and lock the file. Reads start at its beginning and see whole lines only; writes append."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                self._drop_cut_line(stream)
                stream.seek(0)
                yield stream
        except OSError as error:
            raise DataError(f"{self.path}: cannot store the judge's answers ({error}).") from error

    def _drop_cut_line(self, stream: BinaryIO) -> None:
        end = stream.seek(0, os.SEEK_END)
        stream.seek(max(end - 1, 0))
        if stream.read(1) in (b"", b"\n"):
            return
        stream.seek(0)
        whole = stream.read().rfind(b"\n") + 1
        stream.truncate(whole)
        _LOG.warning("%s: the last answer was cut off and is dropped", self.path)
