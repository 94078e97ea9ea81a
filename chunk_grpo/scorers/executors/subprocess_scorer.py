"""A scorer in a worker process, which may use another Python interpreter with other packages."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunk_grpo.config.scorers import AnyScorer, InSubprocess
from chunk_grpo.digests import Digests
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers.executors.remote import Remote, check_identity
from chunk_grpo.scorers.executors.wire import Identity, Question, read_identity, start_line
from chunk_grpo.scorers.executors.worker_process import WorkerLostError, WorkerProcess
from chunk_grpo.scorers.workers.lines import MalformedError, read_message

_LOG = logging.getLogger(__name__)

_NOT_FOR_OTHERS = ("PYTHONHOME", "PYTHONPATH")
"""Variables for the stage's interpreter; with them a script for another interpreter would import wrong packages."""


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
        self._left_to_load = (
            0.0  # rest of start_seconds, granted to the first batch because it loads the model
        )
        self._lock = threading.RLock()

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
        with self._lock:
            if self._identity is None:
                self._with_one_restart(None)
            if self._identity is None:
                raise RuntimeError("a worker was started but its identity was not read")
            return self._identity

    def ask(self, question: Question) -> Mapping[str, Any]:
        """Answer of the worker. If the worker crashes or times out, a new one gets the batch once more.

        Raises:
            TransientError: The second worker failed too. The message gives its exit code and the last lines of stderr.
        """
        with self._lock:
            return self._with_one_restart(question)

    def distrust(self) -> None:
        """Kill the worker. The next batch starts another."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.kill()

    def close(self) -> None:
        """End the worker."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.close()

    def _with_one_restart(self, question: Question | None) -> Mapping[str, Any]:
        try:
            return self._once(question)
        except WorkerLostError as error:
            _LOG.warning("%s %s\nRestarting it once.", self.who, error)
        try:
            return self._once(question)
        except WorkerLostError as error:
            raise TransientError(f"{self.who} {error}\nThis was the second attempt.") from error

    def _once(self, question: Question | None) -> Mapping[str, Any]:
        try:
            process = self._process or self._start()
            if question is None:
                return {}
            answer = process.ask(question.line, self.executor.timeout_seconds + self._left_to_load)
            self._left_to_load = 0.0
            return read_message(answer)
        except MalformedError as error:
            self.distrust()
            raise DataError(f"{self.who} sent a malformed message: {error}") from error
        except BaseException:
            self.distrust()
            raise

    def _start(self) -> WorkerProcess:
        command, environment = self._command(), dict(os.environ)
        if self.executor.script is not None:
            for name in _NOT_FOR_OTHERS:
                environment.pop(name, None)
        try:
            self._process = process = WorkerProcess(command, environment)
        except OSError as error:
            raise ConfigError(f"executors.{self.key}.python: cannot start {command[0]} ({error})") from error
        started = time.monotonic()
        try:
            answer = process.ask(
                start_line(self.key, self.settings, self.executor.device or _device_of_this_process()),
                self.executor.start_seconds,
            )
        except WorkerLostError as error:
            if self._identity is None and error.returncode is not None and error.returncode > 0:
                raise ConfigError(f"{self.who} cannot be started: `{' '.join(command)}` {error}") from error
            raise
        self._left_to_load = max(self.executor.start_seconds - (time.monotonic() - started), 0.0)
        self._remember(read_identity(read_message(answer), self.who))
        return process

    def _remember(self, identity: Identity) -> None:
        if self._identity is None:
            if self.executor.script is None:
                check_identity(self.key, self.settings, identity, self.who)
            self._identity = identity
            _LOG.info("%s is %s (%s)", self.who, identity.name, identity.software)
        elif identity.spec_hash != self._identity.spec_hash:
            raise DataError(
                f"{self.who} is another scorer after a restart: its identity was {self._identity.spec_hash} and is now "
                f"{identity.spec_hash} ({identity.name}). Its files changed meanwhile; run the stage again."
            )

    def _command(self) -> list[str]:
        python, script = self.executor.python or sys.executable, self.executor.script
        if shutil.which(python) is None:
            raise ConfigError(f"executors.{self.key}.python: must be a Python interpreter, got {python!r}")
        if script is None:
            return [python, "-m", "chunk_grpo.scorers.worker"]
        if not Path(script).is_file():
            raise ConfigError(f"executors.{self.key}.script: must be a Python file, got {script!r}")
        return [python, script]


def _device_of_this_process() -> str | None:
    """GPU of this process; without it a worker would default to the first GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return f"cuda:{torch.cuda.current_device()}"
