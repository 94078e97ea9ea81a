"""Worker process that answers each line with a line, with a time limit and clean termination."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence

_KEPT_LINES = 20  # last lines of stderr, for messages
_BLOCK = 2**20  # bytes read or written at a time
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
        self._process: subprocess.Popen[bytes] | None = None
        self._refusal: OSError | None = None
        self._last_lines: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._unread = b""
        started = threading.Event()
        # The kernel kills a worker when the thread that started it ends (PR_SET_PDEATHSIG). The calling thread may end
        # early, so a dedicated thread starts the worker and lives as long.
        self._keeper = threading.Thread(target=self._keep, args=(command, environment, started), daemon=True)
        self._keeper.start()
        started.wait()
        if self._refusal is not None:
            raise self._refusal
        os.set_blocking(self._input, False)

    def ask(self, line: bytes, seconds: float) -> bytes:
        """Write a line, or nothing, and read one.

        After any exception the caller must kill the process: a late answer would be taken for the next one.

        Args:
            line: Line with its newline, or empty.
            seconds: Time limit for writing and reading.

        Raises:
            WorkerLostError: The process ended or exceeded the limit.
        """
        return self._exchange(memoryview(line), seconds)

    def kill(self) -> None:
        """Kill the process group at once."""
        self._signal_group()
        self._leave()

    def close(self) -> None:
        """Close the input, wait until the process ends, and kill the rest of its process group."""
        self._running.stdin.close()  # type: ignore[union-attr]  # made with a pipe
        with contextlib.suppress(subprocess.TimeoutExpired):  # killed below
            self._running.wait(_LEAVE_SECONDS)
        self._signal_group()
        self._leave()

    def _keep(self, command: Sequence[str], environment: Mapping[str, str], started: threading.Event) -> None:
        try:
            process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
            self._process = process
        except OSError as error:
            self._refusal = error
            return
        finally:
            started.set()
        if process.stderr is not None:
            with process.stderr as stream:
                self._read_errors(stream.fileno())
        process.wait()

    def _read_errors(self, stream: int) -> None:
        rest = b""
        while block := os.read(stream, 2**16):
            *whole, rest = (rest + block).split(b"\n")
            self._last_lines.extend(whole)
            rest = rest[-(2**16) :]  # a progress bar never ends its line
        if rest:
            self._last_lines.append(rest)

    def _exchange(self, pending: memoryview, seconds: float) -> bytes:
        deadline = time.monotonic() + seconds
        received = [self._unread]
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            if pending:
                selector.register(self._input, selectors.EVENT_WRITE)
            while (left := deadline - time.monotonic()) > 0:
                for ready, _ in selector.select(left):
                    if ready.fd == self._input:
                        pending = pending[self._write(pending[:_BLOCK]) :]
                        if not pending:
                            selector.unregister(self._input)
                        continue
                    block = os.read(self._output, _BLOCK)
                    if not block:
                        raise self._lost()
                    received.append(block)
                    if b"\n" in block:
                        line, _, self._unread = b"".join(received).partition(b"\n")
                        return line
        raise WorkerLostError(f"gave no answer within {seconds:g} s and was killed{self._words()}")

    def _write(self, block: memoryview) -> int:
        try:
            return os.write(self._input, block)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise self._lost() from None

    def _lost(self) -> WorkerLostError:
        """Error for a closed pipe, after waiting for the process to end."""
        try:
            code = self._running.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            return WorkerLostError(f"closed its output and was killed{self._words()}")
        self._keeper.join(_WORDS_SECONDS)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return WorkerLostError(f"{how}{self._words()}", code)

    def _words(self) -> str:
        text = b"\n".join(self._last_lines).decode("utf-8", "replace").strip()
        return f". Last lines of its stderr:\n{text}" if text else ", with nothing on stderr"

    def _signal_group(self) -> None:
        try:
            os.killpg(self._running.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # the whole group has ended
        except PermissionError:  # raised by macOS if all processes of the group have ended
            return

    def _leave(self) -> None:
        self._running.wait()
        self._keeper.join(_WORDS_SECONDS)
        for stream in (self._running.stdin, self._running.stdout):
            if stream is not None:
                stream.close()

    @property
    def pid(self) -> int:
        """Id of the process and of its group."""
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the process was not started")
        return self._process

    @property
    def _input(self) -> int:
        return self._running.stdin.fileno()  # type: ignore[union-attr]  # made with a pipe

    @property
    def _output(self) -> int:
        return self._running.stdout.fileno()  # type: ignore[union-attr]  # made with a pipe
