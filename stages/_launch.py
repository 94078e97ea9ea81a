"""A stage in several processes, one for each GPU: this process starts them, passes SIGTERM on and answers for them.

The command line stays that of one process, because DVC compares it. torchrun is not used: it ends with exit code 1
whatever its processes ended with, and the flows tell a stage that was stopped (75) from one that failed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from chunk_grpo.config import Params, load_params
from chunk_grpo.errors import ChunkGrpoError, ConfigError, TransientError
from stages._stage import Arguments, begin, params_path, report_error, run_stage

PROCESSES = "CHUNK_GRPO_PROCESSES"
"""Environment variable: the number of processes, in the place of the number of GPUs."""

STOP_SECONDS = 60.0
"""For the others to leave when one process was stopped: the first one may be saving a checkpoint."""

FAIL_SECONDS = 5.0
"""For the others to leave when one has failed: time to tell the same error, if they have it too."""

_POLL_SECONDS = 0.05


def run_processes(
    main: Callable[[Params, Arguments], None],
    arguments: type[Arguments],
    divisible: Callable[[Params], int],
) -> int:
    """Run a stage in this process, or in several where there are several GPUs.

    Args:
        main: As in `run_stage`; it has to know of the other processes.
        arguments: As in `run_stage`.
        divisible: What the number of processes has to divide, unless the environment names that number.

    Returns:
        The exit code: that of the first process that failed.
    """
    if "RANK" in os.environ:  # somebody has started several already: this module, accelerate or torchrun
        return run_stage(main, arguments)
    try:
        gpus = _gpus()
        count = _asked(gpus) or _fitting(gpus, lambda: divisible(load_params(params_path(main, arguments))))
        if count > 1:
            begin()
    except ChunkGrpoError as error:
        return report_error(error)
    if count == 1:
        return run_stage(main, arguments)
    return launch([sys.executable, *sys.orig_argv[1:]], count, on_cpu=gpus == 0)


def launch(command: Sequence[str], count: int, *, on_cpu: bool) -> int:
    """Run a command in `count` processes with the environment of torchrun.

    The first one's messages are shown as they come. Those of another are shown when it was the first to fail.

    Args:
        command: Program and arguments.
        count: Number of processes.
        on_cpu: Whether they leave GPUs alone.

    Returns:
        0, or the exit code of the first process that failed.
    """
    shared = {
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _free_port(),
    }
    shared |= {"ACCELERATE_USE_CPU": "true"} if on_cpu else {}
    with tempfile.TemporaryDirectory(prefix="processes-") as folder:
        messages = [Path(folder, str(rank)) for rank in range(count)]
        group = _Group()
        with group.stopped_by_sigterm():
            for rank in range(count):
                places = {
                    name: str(value) for name, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()
                }
                with messages[rank].open("wb") as stream:
                    group.add(command, os.environ | places, None if rank == 0 else stream)
            failed = group.wait()
        if failed is None:
            return 0
        code = group.exit_code(failed)
        if failed > 0:
            sys.stderr.write(f"process {failed} of {count} ended with exit code {code}:\n")
            sys.stderr.write(messages[failed].read_text(encoding="utf-8", errors="replace"))
        return code


class _Group:
    """Processes that live and die together."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._is_stopped = False

    def add(self, command: Sequence[str], environment: dict[str, str], stderr: object) -> None:
        """Start one more, unless SIGTERM has come."""
        self._processes.append(subprocess.Popen(command, env=environment, stderr=stderr))  # type: ignore[call-overload]
        if self._is_stopped:
            self._processes[-1].terminate()

    @contextmanager
    def stopped_by_sigterm(self) -> Iterator[None]:
        """Inside, SIGTERM goes on to all processes; none of them outlives the block."""
        before = signal.signal(signal.SIGTERM, self._stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
            for process in self._processes:
                process.kill()
                process.wait()

    def wait(self) -> int | None:
        """Wait for all, or for a while after the first one has failed; which one that was, or None."""
        first, deadline = None, float("inf")
        while any(process.poll() is None for process in self._processes) and time.monotonic() < deadline:
            if first is None and (failed := self._failed()):
                first = failed[0]
                patience = STOP_SECONDS if self.exit_code(first) == TransientError.exit_code else FAIL_SECONDS
                deadline = time.monotonic() + patience
            time.sleep(_POLL_SECONDS)
        return first if first is not None else next(iter(self._failed()), None)

    def exit_code(self, rank: int) -> int:
        """A process's, as a shell tells it; a process that SIGTERM ended before it could answer was stopped."""
        code = self._processes[rank].returncode
        if self._is_stopped and code == -signal.SIGTERM:
            return TransientError.exit_code
        return 128 - code if code < 0 else int(code)

    def _failed(self) -> list[int]:
        return [rank for rank, process in enumerate(self._processes) if process.poll() not in (None, 0)]

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._is_stopped = True
        for process in self._processes:
            process.terminate()


def _asked(gpus: int) -> int | None:
    """The number that the environment names.

    Raises:
        ConfigError: It is not a number of processes, or there are fewer GPUs.
    """
    value = os.environ.get(PROCESSES)
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"{PROCESSES}: must be a number of at least 1, got {value!r}")
    if 0 < gpus < int(value):
        raise ConfigError(f"{PROCESSES}: must be at most the number of GPUs {gpus}, got {value}")
    return int(value)


def _fitting(gpus: int, total: Callable[[], int]) -> int:
    """The largest number of processes, at most one for each GPU, that divides `total`."""
    if gpus <= 1:
        return 1
    share = total()
    return max(count for count in range(1, gpus + 1) if share % count == 0)


def _gpus() -> int:
    import torch  # here, so that the module itself costs nothing

    return int(torch.cuda.device_count())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
