"""A stage in several processes, one for each GPU: this process starts them, passes a stop on and answers for them.

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

from chunk_grpo import environment
from chunk_grpo.config import Params, load_params
from chunk_grpo.errors import ChunkGrpoError, ConfigError, TransientError
from chunk_grpo.stopping import STOP_SIGNALS, mute_lost_outputs, stop_seconds
from stages._stage import Arguments, mark_as_run, params_path, report_error, run_stage

FAIL_SECONDS = 5.0
"""For the others to leave when one has failed and none is saving a checkpoint: time to tell the same error."""

_POLL_SECONDS = 0.05
_SIGNALLED = 128  # and the number of the signal, as a shell tells it


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
        seconds = stop_seconds()
        if count > 1:
            mark_as_run()
    except ChunkGrpoError as error:
        return report_error(error)
    if count == 1:
        return run_stage(main, arguments)
    return launch([sys.executable, *sys.orig_argv[1:]], count, seconds, on_cpu=gpus == 0)


def launch(command: Sequence[str], count: int, seconds: float, *, on_cpu: bool) -> int:
    """Run a command in `count` processes with the environment of torchrun.

    The first one's messages are shown as they come. Those of another are shown when it was the first to fail.

    Args:
        command: Program and arguments.
        count: Number of processes.
        seconds: From a stop to SIGKILL.
        on_cpu: Whether they leave GPUs alone.

    Returns:
        0, or the exit code of the first process that failed.
    """
    shared = {
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _free_port(),
        environment.PARENT: os.getpid(),
    }
    shared |= {"ACCELERATE_USE_CPU": "true"} if on_cpu else {}
    with tempfile.TemporaryDirectory(prefix="processes-") as folder:
        shared[environment.SAVING] = Path(folder, "saving")
        messages = [Path(folder, str(rank)) for rank in range(count)]
        group = _Group(Path(folder, "saving"), seconds)
        with group.stopped_by_signals():
            for rank in range(count):
                places = {
                    name: str(value) for name, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()
                }
                with messages[rank].open("wb") as stream:
                    group.add(command, os.environ | places, None if rank == 0 else stream)
            failed = group.wait()
        if failed is None:
            return 0
        if told := group.account(failed):
            sys.stderr.write(told + messages[failed].read_text(encoding="utf-8", errors="replace"))
        return group.exit_code(failed)


class _Group:
    """Processes that live and die together.

    After a stop, the end of one that was stopped, or a failure while the first one saves a checkpoint, the others have
    the stop's seconds; after any other failure FAIL_SECONDS.
    """

    def __init__(self, saving: Path, seconds: float) -> None:
        """Start none yet.

        Args:
            saving: A file that is there while the first process saves.
            seconds: From a stop to SIGKILL.
        """
        self._processes: list[subprocess.Popen[bytes]] = []
        self._saving, self._seconds = saving, seconds
        self._stopped_at = float("inf")
        self._interrupts = 0
        self._late: list[int] = []

    def add(self, command: Sequence[str], environment: dict[str, str], stderr: object) -> None:
        """Start one more, unless a stop has come."""
        self._processes.append(subprocess.Popen(command, env=environment, stderr=stderr))  # type: ignore[call-overload]
        if self._is_stopped:
            self._processes[-1].terminate()

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Inside, a stop goes on to all processes, and a second Ctrl-C kills them; none of them outlives the block."""
        before = {
            number: signal.signal(number, self._stop)
            for number in STOP_SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for process in self._processes:
                process.kill()
                process.wait()

    def wait(self) -> int | None:
        """Wait for all, or for a while after a stop or the first failure; which one failed first, or None."""
        first, failed_at = None, float("inf")
        while any(process.poll() is None for process in self._processes):
            if first is None and (failed := self._failed()):
                first, failed_at = failed[0], time.monotonic()
            if time.monotonic() >= min(self._stopped_at, failed_at) + self._patience(first):
                break
            time.sleep(_POLL_SECONDS)
        self._late = [rank for rank, process in enumerate(self._processes) if process.poll() is None]
        for rank in self._late:
            self._processes[rank].kill()
            self._processes[rank].wait()
        return first if first is not None else next(iter(self._failed()), None)

    def _patience(self, first: int | None) -> float:
        """Seconds from a stop or the first failure to SIGKILL."""
        was_stopped = first is None or self.exit_code(first) == TransientError.exit_code
        return self._seconds if was_stopped or self._is_stopped or self._saving.exists() else FAIL_SECONDS

    def exit_code(self, rank: int) -> int:
        """A process's, as a shell tells it; one that a stop signal or a second Ctrl-C ended was stopped."""
        code = self._processes[rank].returncode
        if self._interrupts > 1 or (self._is_stopped and -code in STOP_SIGNALS):
            return TransientError.exit_code
        return _SIGNALLED - code if code < 0 else int(code)

    def account(self, failed: int) -> str:
        """How the first one that failed ended, a line before its messages; "" where those of process 0 tell it."""
        code, who = self.exit_code(failed), f"process {failed} of {len(self._processes)}"
        if self._is_stopped and code == self.exit_code(0) == TransientError.exit_code:
            return ""
        if self._is_stopped and failed in self._late:
            late = f"{self._seconds:.0f} s after the stop ({environment.STOP_SECONDS})"
            return f"{who} was killed {late}: what it was saving is lost\n"
        if code - _SIGNALLED in set(signal.Signals):
            return f"{who} was ended by {signal.Signals(code - _SIGNALLED).name}\n"
        return f"{who} ended with exit code {code}:\n" if failed > 0 else ""

    def _failed(self) -> list[int]:
        return [rank for rank, process in enumerate(self._processes) if process.poll() not in (None, 0)]

    @property
    def _is_stopped(self) -> bool:
        return self._stopped_at < float("inf")

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del frame
        mute_lost_outputs()
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            self._seconds = 0
        if not self._is_stopped:
            self._stopped_at = time.monotonic()
        for process in self._processes:
            process.terminate()


def _asked(gpus: int) -> int | None:
    """The number that the environment names.

    Raises:
        ConfigError: It is not a number of processes, or there are fewer GPUs.
    """
    value = os.environ.get(environment.PROCESSES)
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"{environment.PROCESSES}: must be a number of at least 1, got {value!r}")
    if 0 < gpus < int(value):
        raise ConfigError(f"{environment.PROCESSES}: must be at most the number of GPUs {gpus}, got {value}")
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
