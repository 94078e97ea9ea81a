"""Worker process that answers each line with a line, with a time limit and clean termination."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO

_KEPT_LINES = 20  # last lines of stderr, for messages
_LEAVE_SECONDS = 10.0  # time for a worker to end after its input is closed
_WORDS_SECONDS = 0.5  # time to read the rest of stderr; a surviving child could keep it open


class WorkerLostError(Exception):
    """The process ended or did not answer in time. The message gives the cause and the last lines of stderr.

    Attributes:
        returncode: Return code of the process, negative for a signal; None if it was killed after a timeout.
    """

    def __init__(self, message: str, returncode: int | None = None) -> None:
        """Set the message and the return code."""
        super().__init__(message)
        self.returncode = returncode


class WorkerProcess:
    """A running worker, leader of its own process group."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the process.

        Args:
            command: Interpreter and arguments.
            environment: Complete environment of the process.

        Raises:
            OSError: The process cannot be started.
        """
        self._process = process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._questions: IO[bytes] = process.stdin  # type: ignore[assignment]  # made with pipes
        self._answers: IO[bytes] = process.stdout  # type: ignore[assignment]
        self._last_lines: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._errors = threading.Thread(target=self._read_errors, args=(process.stderr,), daemon=True)
        self._errors.start()

    @property
    def pid(self) -> int:
        """Id of the process and of its group."""
        return self._process.pid

    def ask(self, line: bytes, seconds: float) -> bytes:
        """Write a line and read one.

        After any exception the caller must kill the process: a late answer would be taken for the next one.

        Args:
            line: Line with its newline.
            seconds: Time limit for writing and reading.

        Raises:
            WorkerLostError: The process ended or exceeded the limit.
        """
        is_late = threading.Event()
        timer = threading.Timer(seconds, self._end_late, (is_late,))
        timer.start()
        try:
            self._questions.write(line)
            self._questions.flush()
            answer = self._answers.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            timer.cancel()
        if is_late.is_set():
            raise WorkerLostError(f"gave no answer within {seconds:g} s and was killed{self._words()}")
        if not answer.endswith(b"\n"):
            raise self._lost()
        return answer

    def kill(self) -> None:
        """Kill the process group at once."""
        self._kill_group()
        self._process.wait()
        self._errors.join(_WORDS_SECONDS)
        with contextlib.suppress(BrokenPipeError):  # of an unread question
            self._questions.close()
        self._answers.close()

    def close(self) -> None:
        """Close the input, wait until the process ends, and kill the rest of its process group."""
        with contextlib.suppress(BrokenPipeError):
            self._questions.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # killed below
            self._process.wait(_LEAVE_SECONDS)
        self.kill()

    def _end_late(self, is_late: threading.Event) -> None:
        is_late.set()
        self._kill_group()

    def _read_errors(self, stream: IO[bytes]) -> None:
        rest = b""
        with stream:
            while block := os.read(stream.fileno(), 2**16):
                *whole, rest = (rest + block).split(b"\n")
                self._last_lines.extend(whole)
                rest = rest[-(2**16) :]  # a progress bar never ends its line
        if rest:
            self._last_lines.append(rest)

    def _lost(self) -> WorkerLostError:
        """Error for a closed pipe, after waiting for the process to end."""
        try:
            code = self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            return WorkerLostError(f"closed its output and was killed{self._words()}")
        self._errors.join(_WORDS_SECONDS)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return WorkerLostError(f"{how}{self._words()}", code)

    def _words(self) -> str:
        text = b"\n".join(self._last_lines).decode("utf-8", "replace").strip()
        return f". Last lines of its stderr:\n{text}" if text else ", with nothing on stderr"

    def _kill_group(self) -> None:
        # Permission: raised by macOS if all processes of the group have ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
