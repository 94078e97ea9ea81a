"""A judge's answers in a file, each written as soon as it is there: what was paid for is not asked again."""

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
    """JSON lines of the form {"key": ..., "label": ..., "answer": ...}; several processes of a host may share one."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened yet; `path` is made by the first use."""
        self.path = path

    def read(self, check: Callable[[str], object]) -> dict[str, str]:
        """Every answer by its key; of two with one key, the first.

        A last line that was cut off, as by a kill, is dropped.

        Args:
            check: Raises ValueError for an answer that is not of the form asked for.

        Raises:
            DataError: A line is damaged otherwise, or the file cannot be read; names the line.
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
                    f"{self.path}, line {number}: no answer of this judge ({type(error).__name__}: {error}). Delete "
                    "the line, and its image is judged again."
                ) from error
            answers.setdefault(key, answer)
        return answers

    def append(self, key: str, label: str, answer: str) -> None:
        """Add an answer.

        Args:
            key: Identifies the question.
            label: Says what was asked, for those who read the file.
            answer: The judge's words.

        Raises:
            DataError: It cannot be written.
        """
        line = json.dumps({"key": key, "label": label, "answer": answer})
        with self._locked() as stream:
            stream.write(line.encode() + b"\n")

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """The file from its start, whole lines only, for this process alone; what is written goes to its end."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                self._drop_cut_line(stream)
                stream.seek(0)
                yield stream
        except OSError as error:
            raise DataError(f"{self.path}: the judge's answers cannot be kept there ({error}).") from error

    def _drop_cut_line(self, stream: BinaryIO) -> None:
        end = stream.seek(0, os.SEEK_END)
        stream.seek(max(end - 1, 0))
        if stream.read(1) in (b"", b"\n"):
            return
        stream.seek(0)
        whole = stream.read().rfind(b"\n") + 1
        stream.truncate(whole)
        _LOG.warning("%s: the last answer was cut off and is dropped", self.path)
