"""A scorer in a worker process, which may use another Python interpreter with other packages."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import time
from pathlib import Path

import httpx

from chunk_grpo.config.scorers import AnyScorer, InSubprocess
from chunk_grpo.digests import Digests
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers.executors.messages import Identity, read_identity, start_message
from chunk_grpo.scorers.executors.remote import Remote, check_identity
from chunk_grpo.scorers.executors.worker_process import WorkerProcess
from chunk_grpo.scorers.running.retry import current_gpu
from chunk_grpo.scorers.workers import worker_protocol

_LOG = logging.getLogger(__name__)

_PROTOCOL_FOLDER = str(Path(worker_protocol.__file__).parents[1])
"""A script imports worker_protocol from here."""


class SubprocessScorer(Remote):
    """Client of a worker process, which serves this process alone.

    It starts at the first use. After a crash or timeout the next use starts another.
    """

    def __init__(self, key: str, settings: AnyScorer, executor: InSubprocess) -> None:
        """Start no process yet."""
        super().__init__(key, settings)
        self.executor = executor
        self._process: WorkerProcess | None = None
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

    def contact(self) -> tuple[httpx.Client, Identity]:
        """Client and identity of the worker, which is started if it has not run yet or has ended."""
        process = self._process or self._start()
        assert self._identity is not None
        return process.client, self._identity

    def next_limit(self) -> float:
        """Time limit of the next batch, in seconds; that of the first has time for loading the model."""
        seconds, self._left_to_load = self.executor.timeout_seconds + self._left_to_load, 0.0
        return seconds

    def no_answer(self, error: httpx.TransportError, seconds: float) -> Exception:
        """Kill the worker; error with its end and its last words."""
        process = self._process
        assert process is not None
        if isinstance(error, httpx.TimeoutException):
            self._kill()
            return TransientError(f"{self.who} gave no answer within {seconds:g} s and was killed{process.words()}")
        code, end = process.end()
        self._kill()
        if self._identity is None and code is not None and code >= 0:
            return ConfigError(f"{self.who} cannot be started: `{' '.join(self._command())}` {end}")
        return TransientError(f"{self.who} {end}")

    def close(self) -> None:
        """End the worker."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _start(self) -> WorkerProcess:
        command, environment = self._command(), dict(os.environ)
        if self.executor.script is not None:
            environment.pop("PYTHONHOME", None)  # of the stage's interpreter, as its PYTHONPATH
            environment["PYTHONPATH"] = _PROTOCOL_FOLDER
        started, gpu = time.monotonic(), current_gpu()
        device = self.executor.device or (None if gpu is None else f"cuda:{gpu}")
        try:
            self._process = process = WorkerProcess(
                command, environment, lambda socket: start_message(self.key, self.settings, device, socket)
            )
        except OSError as error:
            raise ConfigError(f"executors.{self.key}.python: cannot start {command[0]} ({error})") from error
        try:
            health = self.exchange(process.client, self.executor.start_seconds, "GET", "health")
            self._accept(read_identity(health, self.who))
        except BaseException:
            self._kill()
            raise
        self._left_to_load = max(self.executor.start_seconds - (time.monotonic() - started), 0.0)
        return process

    def _accept(self, identity: Identity) -> None:
        before = self._identity
        if before is not None and identity.spec_hash != before.spec_hash:
            raise DataError(
                f"{self.who} is another scorer after a restart: its identity was {before.spec_hash} and is now "
                f"{identity.spec_hash} ({identity.name}). Its files changed meanwhile; run the stage again."
            )
        if before is None and self.executor.script is None:
            check_identity(self.key, self.settings, identity, self.who)
        _LOG.info("%s is %s (%s)", self.who, identity.name, identity.software)
        self._identity = identity

    def _command(self) -> list[str]:
        python, script = self.executor.python or sys.executable, self.executor.script
        if shutil.which(python) is None:
            raise ConfigError(f"executors.{self.key}.python: must be a Python interpreter, got {python!r}")
        if script is None:
            return [python, "-m", "chunk_grpo.scorers.worker"]
        if not Path(script).is_file():
            raise ConfigError(f"executors.{self.key}.script: must be a Python file, got {script!r}")
        return [python, script]
