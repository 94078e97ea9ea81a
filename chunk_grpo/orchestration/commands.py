"""Run commands in parallel, pass on their output line by line, and stop all of them with their child processes."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from chunk_grpo.errors import ConfigError

Log = Callable[[str], None]

_LONGEST = 500  # characters of what DVC says
_PROGRESS_SECONDS = 10.0  # progress bars redraw many times a second: log one state per interval


class CommandStoppedError(Exception):
    """`Commands.stop` was called before this command started or while it ran."""


class Commands:
    """Commands that run in parallel, each with a thread that waits for it, and are stopped together.

    Attributes:
        stopping: Event set by `stop`.
    """

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._running: dict[subprocess.Popen[bytes], int] = {}  # and the thread that waits for it
        self._lock = threading.Lock()

    def run(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], on_line: Log) -> int:
        """Run a command to its end; pass each line of its stdout and stderr on as it appears, without its line end.

        Any exception, such as Prefect's on SIGTERM, stops the command and is raised again; CommandStoppedError if
        `stop` was called before or while it ran. Stopped commands get SIGTERM, and end what they have started. Nothing
        is added to `environment`. Returns the exit status; 128 plus the signal's number for a signal.
        """
        with self._lock:
            if self.stopping.is_set():
                raise CommandStoppedError("stopped with all others")
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # Prefect kills a flow run's process group 30 s after SIGTERM, regardless of settings.
                start_new_session=True,
            )
            self._running[process] = threading.get_ident()
        assert process.stdout is not None
        # newline="" keeps "\r", which distinguishes progress bar states from lines.
        with io.TextIOWrapper(process.stdout, encoding="utf-8", errors="replace", newline="") as output:
            try:
                for line in _lines(output):
                    on_line(line)
                code = process.wait()
            except BaseException:
                process.terminate()
                for line in _lines(output):
                    on_line(line)
                process.wait()
                raise
            finally:
                with self._lock:
                    self._running.pop(process)
        if code != 0 and self.stopping.is_set():
            raise CommandStoppedError("stopped with all others")
        return 128 - code if code < 0 else code

    def stop(self) -> None:
        """Send SIGTERM to every command and start no new one; waiting threads get `CommandStoppedError`."""
        with self._lock:
            self.stopping.set()
            for process in self._running:
                process.terminate()

    def end(self, thread: int) -> None:
        """Send SIGTERM to the command that a thread waits for, if there is one."""
        with self._lock:
            for process, waits in self._running.items():
                if waits == thread:
                    process.terminate()


def _lines(output: io.TextIOWrapper) -> Iterator[str]:
    """Yield non-empty lines without line ends, and one progress bar state per `_PROGRESS_SECONDS`."""
    last_progress = float("-inf")
    for raw in output:
        if raw.endswith("\r"):
            if time.monotonic() - last_progress < _PROGRESS_SECONDS:
                continue
            last_progress = time.monotonic()
        if line := raw.rstrip():
            yield line


def require_clone(folder: Path) -> None:
    """Require that a folder is a clone of the repository, for git and DVC; ConfigError says what to do."""
    for name in (".git", ".dvc", "dvc.yaml"):
        if not (folder / name).exists():
            raise ConfigError(
                f"{folder}: must be a clone of the repository, for git and DVC, got a folder without {name}; call the "
                "command in a folder that `git clone` has made"
            )


def dvc(folder: Path, *arguments: str, check: bool = True) -> str:
    """Output of a DVC command in a repository; with `check`, its failure is a ConfigError."""
    command = [sys.executable, "-m", "dvc", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        said = said_by_dvc(done.stdout + done.stderr)
        raise ConfigError(
            f"dvc {arguments[0]} failed in {folder}: {said}. Mend that (a remote: its URL, `dvc remote list`, and its "
            "credentials), and run the same command again."
        )
    return done.stdout


def said_by_dvc(text: str) -> str:
    """What DVC says about its failure, in one line: its last error, without its links and hints."""
    errors = re.split(r"^ERROR: ", text, flags=re.MULTILINE)[1:]
    last = errors[-1].split("\n\n")[0] if errors else text
    return " ".join(last.split())[:_LONGEST].rstrip(".")
