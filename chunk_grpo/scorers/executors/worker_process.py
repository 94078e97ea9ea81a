"""A process that serves a scorer to this one: its socket, its last words, and its end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import httpx

_KEPT_LINES = 20
"""Last lines of the output, for messages."""
_LEAVE_SECONDS = 10.0
"""Time for a worker to end after its input is closed."""
_WORDS_SECONDS = 0.5
"""Time to read the rest of the output; a surviving child could keep it open."""
_LONGEST_FOLDER = 80
"""Length of a folder in which a socket can be: some systems take 104 bytes for its whole path."""


class WorkerProcess:
    """A running worker, leader of its own process group.

    It listens on a socket in a folder that only this user can enter. It inherits the socket, so requests wait in the
    socket's queue while it starts. It ends when its standard input is closed, so it does not outlive this process.

    Attributes:
        client: Client of its server.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], start: Callable[[int], bytes]) -> None:
        """Start the process; OSError if that fails.

        Args:
            command: Interpreter and arguments.
            environment: Complete environment of the process.
            start: Makes the start message from the number of the listening socket.
        """
        is_long = len(tempfile.gettempdir()) > _LONGEST_FOLDER
        self._folder = tempfile.mkdtemp(prefix="scorer-", dir="/tmp" if is_long else None)
        address = str(Path(self._folder) / "socket")
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen()
                self._process = process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                    pass_fds=[listener.fileno()],
                )
                message = start(listener.fileno())
        except BaseException:
            self._remove_socket()
            raise
        self._stage: IO[bytes] = process.stdin  # type: ignore[assignment]  # made with pipes
        self._last_lines: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._reading = threading.Thread(target=self._read_output, args=(process.stdout,), daemon=True)
        self._reading.start()
        with contextlib.suppress(BrokenPipeError):  # it has ended, as the first request will show
            self._stage.write(message)
            self._stage.flush()
        self.client = httpx.Client(transport=httpx.HTTPTransport(uds=address), base_url="http://localhost")

    @property
    def pid(self) -> int:
        """Id of the process and of its group."""
        return self._process.pid

    def end(self) -> tuple[int | None, str]:
        """End of a process that has closed its socket: return code, negative for a signal, and what to say of it.

        The return code is None if it had to be killed.
        """
        try:
            code = self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            return None, f"closed its socket and was killed{self.words()}"
        self._reading.join(_WORDS_SECONDS)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return code, f"{how}{self.words()}"

    def words(self) -> str:
        """Last lines of the output, as the end of a sentence."""
        text = b"\n".join(self._last_lines).decode("utf-8", "replace").strip()
        return f". Last lines of its output:\n{text}" if text else ", with no output"

    def kill(self) -> None:
        """Kill the process group at once."""
        # Permission: raised by macOS if all processes of the group have ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reading.join(_WORDS_SECONDS)
        with contextlib.suppress(BrokenPipeError):
            self._stage.close()
        self.client.close()
        self._remove_socket()

    def close(self) -> None:
        """Close the input, wait until the process ends, and kill the rest of its process group."""
        with contextlib.suppress(BrokenPipeError):
            self._stage.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # killed below
            self._process.wait(_LEAVE_SECONDS)
        self.kill()

    def _read_output(self, stream: IO[bytes]) -> None:
        rest = b""
        with stream:
            while block := os.read(stream.fileno(), 2**16):
                *whole, rest = (rest + block).split(b"\n")
                self._last_lines.extend(whole)
                rest = rest[-(2**16) :]  # a progress bar never ends its line
        if rest:
            self._last_lines.append(rest)

    def _remove_socket(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
