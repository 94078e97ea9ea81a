"""A scorer in a worker process, which may use another Python interpreter with other packages."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from chunk_grpo.config.scorers import AnyScorer, InSubprocess
from chunk_grpo.digests import Digests
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers.executors.messages import Identity, read_identity, start_message
from chunk_grpo.scorers.executors.remote import Remote, check_identity
from chunk_grpo.scorers.executors.worker_process import WorkerLostError, WorkerProcess
from chunk_grpo.scorers.running.retry import current_gpu
from chunk_grpo.scorers.workers import worker_protocol
from chunk_grpo.scorers.workers.worker_protocol import MalformedError, read_message

Result = TypeVar("Result")

_LOG = logging.getLogger(__name__)

_PROTOCOL_FOLDER = str(Path(worker_protocol.__file__).parent)
"""A script imports worker_protocol from here."""


class SubprocessScorer(Remote):
    """Client of a worker process. It starts at the first use, and once more after a crash or timeout."""

    def __init__(self, key: str, settings: AnyScorer, executor: InSubprocess) -> None:
        """Start no process yet.

        Args:
            key: Name of the scorer in params.yaml.
            settings: The scorer's section.
            executor: Interpreter, script and time limits.
        """
        super().__init__(key, settings)
        self.executor = executor
        self._process: WorkerProcess | None = None
        self._identity: Identity | None = None
        # Rest of start_seconds, granted to the first batch because it loads the model.
        self._left_to_load = 0.0

    @property
    def who(self) -> str:
        """Name of the worker, for messages."""
        return f"scorer {self.key}: its worker process"

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None if none runs."""
        return None if self._process is None else self._process.pid

    def spec_hash(self) -> str:
        """Spec hash that the worker reports, combined with a custom script's content."""
        own_hash = super().spec_hash()
        if self.executor.script is None:
            return own_hash
        return hashlib.sha256(f"{own_hash} {Digests().of(self.executor.script)}".encode()).hexdigest()[:16]

    def identity(self) -> Identity:
        """Identity of the worker, which is started if none has run yet.

        Raises:
            ConfigError: The worker cannot be started, or a package is missing there.
            DataError: A file is missing there, or the scorer changed after a restart.
            TransientError: The worker timed out or was killed, twice.
        """
        return self._identity or self._with_one_restart(self._start)[1]

    def ask(self, message: bytes) -> Mapping[str, Any]:
        """Answer of the worker. If the worker crashes or times out, a new one gets the batch once more.

        Raises:
            TransientError: The second worker failed too. The message gives its exit code and the last lines of stderr.
        """
        return self._with_one_restart(lambda: self._answer(message))

    def distrust(self) -> None:
        """Kill the worker. The next batch starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the worker."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _with_one_restart(self, action: Callable[[], Result]) -> Result:
        try:
            return self._safely(action)
        except WorkerLostError as error:
            _LOG.warning("%s %s\nRestarting it once.", self.who, error)
        try:
            return self._safely(action)
        except WorkerLostError as error:
            raise TransientError(f"{self.who} {error}\nThis was the second attempt.") from error

    def _safely(self, action: Callable[[], Result]) -> Result:
        """Kill the worker after any exception: a late answer would be taken for the next one."""
        try:
            return action()
        except MalformedError as error:
            self.distrust()
            raise DataError(f"{self.who} sent a malformed message: {error}") from error
        except BaseException:
            self.distrust()
            raise

    def _answer(self, message: bytes) -> Mapping[str, Any]:
        process = self._process or self._start()[0]
        line = process.ask(message, self.executor.timeout_seconds + self._left_to_load)
        self._left_to_load = 0.0
        return read_message(line)

    def _start(self) -> tuple[WorkerProcess, Identity]:
        command, environment = self._command(), dict(os.environ)
        if self.executor.script is not None:
            environment.pop("PYTHONHOME", None)  # of the stage's interpreter, as its PYTHONPATH
            environment["PYTHONPATH"] = _PROTOCOL_FOLDER
        try:
            self._process = process = WorkerProcess(command, environment)
        except OSError as error:
            raise ConfigError(f"executors.{self.key}.python: cannot start {command[0]} ({error})") from error
        started, gpu = time.monotonic(), current_gpu()
        device = self.executor.device or (None if gpu is None else f"cuda:{gpu}")
        message = start_message(self.key, self.settings, device)
        try:
            answer = process.ask(message, self.executor.start_seconds)
        except WorkerLostError as error:
            if self._identity is None and error.returncode is not None and error.returncode > 0:
                raise ConfigError(f"{self.who} cannot be started: `{' '.join(command)}` {error}") from error
            raise
        self._left_to_load = max(self.executor.start_seconds - (time.monotonic() - started), 0.0)
        self._identity = identity = self._checked(read_identity(read_message(answer), self.who))
        return process, identity

    def _checked(self, identity: Identity) -> Identity:
        before = self._identity
        if before is not None and identity.spec_hash != before.spec_hash:
            raise DataError(
                f"{self.who} is another scorer after a restart: its identity was {before.spec_hash} and is now "
                f"{identity.spec_hash} ({identity.name}). Its files changed meanwhile; run the stage again."
            )
        if before is None and self.executor.script is None:
            check_identity(self.key, self.settings, identity, self.who)
        _LOG.info("%s is %s (%s)", self.who, identity.name, identity.software)
        return identity

    def _command(self) -> list[str]:
        python, script = self.executor.python or sys.executable, self.executor.script
        if shutil.which(python) is None:
            raise ConfigError(f"executors.{self.key}.python: must be a Python interpreter, got {python!r}")
        if script is None:
            return [python, "-m", "chunk_grpo.scorers.worker"]
        if not Path(script).is_file():
            raise ConfigError(f"executors.{self.key}.script: must be a Python file, got {script!r}")
        return [python, script]
