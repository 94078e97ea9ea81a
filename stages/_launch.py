"""Run a stage in several processes, one per GPU: start them, forward stop signals, return one exit code.

The command line is the same as for one process, because DVC compares it. torchrun is not used: it always fails with
exit code 1, and the flows need the exit code to distinguish a stopped stage (75) from a failed one.
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
from chunk_grpo.config import Params
from chunk_grpo.errors import ChunkGrpoError, ConfigError, TransientError
from chunk_grpo.stopping import STOP_SIGNALS, mute_lost_outputs, stop_seconds
from stages._stage import Arguments, mark_as_run, parsed, report_error, run_stage

FAIL_SECONDS = 5.0
"""Grace period for the other processes after one failed while no checkpoint is being saved."""

_POLL_SECONDS = 0.05
_SIGNALLED = 128  # added to the signal's number, as in a shell's exit codes


def run_processes(
    main: Callable[[Params, Arguments], None],
    arguments: type[Arguments],
    divisible: Callable[[Params, Arguments], int | None] = lambda params, arguments: None,
) -> int:
    """Run a stage in this process, or in several processes if there are several GPUs.

    Args:
        main: As in `run_stage`; must support several processes.
        arguments: As in `run_stage`.
        divisible: Number that the process count must divide, unless the environment sets the count; None: any count.

    Returns:
        Exit code; with several processes, the exit code of the first one that failed.
    """
    if (
        "RANK" in os.environ
    ):  # already one of several processes, started by this module, accelerate or torchrun
        return run_stage(main, arguments)
    try:
        gpus = _gpus()
        count = _asked(gpus) or _fitting(gpus, lambda: divisible(*parsed(main, arguments)))
        seconds = stop_seconds()
        if count > 1:
            mark_as_run()
    except ChunkGrpoError as error:
        return report_error(error)
    if count == 1:
        return run_stage(main, arguments)
    return launch([sys.executable, *sys.orig_argv[1:]], count, seconds, on_cpu=gpus == 0)


def launch(command: Sequence[str], count: int, seconds: float, *, on_cpu: bool) -> int:
    """Run a command in `count` processes with the environment variables of torchrun.

    The stderr of process 0 is shown live. The stderr of another process is shown only if it was the first to fail.

    Args:
        command: Program and arguments.
        count: Number of processes.
        seconds: Seconds from a stop request to SIGKILL.
        on_cpu: Whether the processes use no GPU.

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
        if account := group.account(failed):
            sys.stderr.write(account + messages[failed].read_text(encoding="utf-8", errors="replace"))
        return group.exit_code(failed)


class _Group:
    """Processes that end together.

    The grace period before SIGKILL is the stop timeout after a stop request, after a process exited as stopped, and
    after a failure while process 0 saves a checkpoint. After any other failure it is FAIL_SECONDS.
    """

    def __init__(self, saving: Path, seconds: float) -> None:
        """Start no process yet.

        Args:
            saving: File that exists while process 0 saves a checkpoint.
            seconds: Seconds from a stop request to SIGKILL.
        """
        self._processes: list[subprocess.Popen[bytes]] = []
        self._saving, self._seconds = saving, seconds
        self._stopped_at = float("inf")
        self._interrupts = 0
        self._late: list[int] = []

    def add(self, command: Sequence[str], environment: dict[str, str], stderr: object) -> None:
        """Start a process; terminate it at once if a stop was requested."""
        self._processes.append(subprocess.Popen(command, env=environment, stderr=stderr))  # type: ignore[call-overload]
        if self._is_stopped:
            self._processes[-1].terminate()

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Forward stop signals to all processes; a second Ctrl-C kills them. On exit, kill those still running."""
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
        """Wait for all processes; after a stop or failure, kill the rest when the grace period is over.

        Returns:
            Rank of the first process that failed, or None.
        """
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
        """Grace period in seconds, from a stop request or the first failure to SIGKILL."""
        was_stopped = first is None or self.exit_code(first) == TransientError.exit_code
        return self._seconds if was_stopped or self._is_stopped or self._saving.exists() else FAIL_SECONDS

    def exit_code(self, rank: int) -> int:
        """Exit code of a process, as a shell reports it; 75 if a stop signal or a second Ctrl-C ended it."""
        code = self._processes[rank].returncode
        if self._interrupts > 1 or (self._is_stopped and -code in STOP_SIGNALS):
            return TransientError.exit_code
        return _SIGNALLED - code if code < 0 else int(code)

    def account(self, failed: int) -> str:
        """One line on how the first failed process ended, or "" if the messages of process 0 already say it."""
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
    """The number of processes set in the environment, or None.

    Raises:
        ConfigError: The value is not a positive integer, or exceeds the number of GPUs.
    """
    value = os.environ.get(environment.PROCESSES)
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"{environment.PROCESSES}: must be a number of at least 1, got {value!r}")
    if 0 < gpus < int(value):
        raise ConfigError(f"{environment.PROCESSES}: must be at most the number of GPUs {gpus}, got {value}")
    return int(value)


def _fitting(gpus: int, total: Callable[[], int | None]) -> int:
    """The largest number of processes, at most one per GPU, that divides `total`; a message names unused GPUs."""
    if gpus <= 1:
        return 1
    share = total()
    if share is None:
        return gpus
    count = max(count for count in range(1, gpus + 1) if share % count == 0)
    if share > 1 and count < gpus:
        sys.stderr.write(
            f"{count} of {gpus} GPUs are used: the {share} trajectories of an update cannot be divided evenly among "
            "more. Change train.prompts_per_iteration or train.group_size to use all.\n"
        )
    return count


def _gpus() -> int:
    import torch  # here: slow to import

    return int(torch.cuda.device_count())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
