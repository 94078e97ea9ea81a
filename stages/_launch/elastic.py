"""Processes of a stage on this machine, by torch's elastic launcher, which starts them, and ends all after a failure.

`max_restarts=0`: a failed stage is started again by who started it. torch's own report is not shown. Of torch's waits
one is not ours: after a failure the other processes have 30 s to end.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import psutil

from chunk_grpo import environment
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.stopping import STOP_SIGNALS, mute_lost_outputs

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig

MEET_SECONDS = 60
"""Seconds in which the launchers of several machines, which are all ready, must reach each other."""

_SIGNALLED = 128  # added to the signal's number, as in a shell's exit codes


@dataclass(frozen=True)
class Outcome:
    """How a machine's processes ended."""

    code: int = 0
    """Exit code; 0: all succeeded."""
    account: str = ""
    """Lines on the process that failed."""
    is_lost: bool = False
    """Whether the machine does not answer."""

    @property
    def is_explained(self) -> bool:
        """Whether all processes fail with the same sentence, on a setting or a file."""
        return self.code in (ConfigError.exit_code, DataError.exit_code)

    def rank(self) -> tuple[bool, ...]:
        """Order of several machines' failures: a wrong setting or file, a lost machine, what is no consequence."""
        return not self.is_explained, not self.is_lost, self.code == TransientError.exit_code


@dataclass(frozen=True)
class Machines:
    """This machine among those that share a stage."""

    count: int = 1
    """Number of machines, >= 1."""
    index: int = 0
    """Number of this machine, from 0."""
    address: str = "127.0.0.1"
    """Host name or IP address of machine 0."""
    folder: Path = Path()
    """Folder of the notes, on a disk that all machines see."""


@dataclass(frozen=True)
class Job:
    """A stage to be run by all machines."""

    name: str
    """Unique name."""
    arguments: list[str]
    """Arguments of Python."""
    folder: str
    """Folder of the stage."""
    stage: str | None
    """DVC's name of the stage; None: DVC does not run it."""
    count: int
    """Number of processes on each machine."""
    address: str
    """Host name or IP address of machine 0."""
    port: int
    """Port on machine 0 where the processes meet."""


class Stop:
    """Stop signals while torch's launcher runs: the first stops the processes, a second Ctrl-C kills them.

    Others are ignored: several senders may ask for the same stop, and torch would give up its wait.

    Attributes:
        begun_at: When the first arrived, by `time.monotonic`; None: none has.
        is_heeded: Whether signals are handled now.
    """

    def __init__(self) -> None:
        self.begun_at: float | None = None
        self.is_heeded = False
        self.is_killed = False
        self._is_interrupted = False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Inside the block the signals are handled, but for those that are ignored (nohup)."""
        heeded = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._handle) for number in heeded}
        self.is_heeded = True
        try:
            yield
        finally:
            self.is_heeded = False
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        from torch.distributed.elastic.multiprocessing import SignalException  # here: slow to import

        mute_lost_outputs()
        if number == signal.SIGINT and self._is_interrupted:
            self.is_killed = True
            kill_processes()
        self._is_interrupted |= number == signal.SIGINT
        if self.begun_at is None:
            self.begun_at = time.monotonic()
            raise SignalException("stop", signal.SIGTERM)  # torch sends it to the processes, and waits


def launch(job: Job, place: Machines, stop: Stop, seconds: float, *, on_cpu: bool) -> Outcome:
    """Run Python in the processes of this machine, with the environment variables of torchrun.

    The stderr of process 0 is shown live. The stderr of another process is in the outcome if it was the first to fail.
    `seconds` is from a stop request to SIGKILL. Processes that use no GPU (`on_cpu`) have one thread each, so that they
    do not compete for the cores.
    """
    # Here: slow to import.
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    with tempfile.TemporaryDirectory(prefix="processes-") as folder, _quiet():
        left = Path(folder, "code")
        variables = {environment.PARENT: str(os.getpid()), environment.EXIT_CODE: str(left)}
        variables |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"} if on_cpu else {}
        before = dict(os.environ)
        os.environ |= variables  # which the processes inherit
        try:
            with stop.heeded():
                elastic_launch(_settings(job, place, folder, int(seconds)), sys.executable)(*job.arguments)
        except SignalException:
            return _stopped(stop, seconds, left)
        except ChildFailedError as error:
            return _failed(error, job, place, Path(folder))
        except DistError as error:
            return Outcome(TransientError.exit_code, _did_not_meet(job, place, str(error).splitlines()[0]))
        finally:
            kill_processes()
            for name in variables:
                os.environ.pop(name)
            os.environ |= before
    return Outcome()


def _did_not_meet(job: Job, place: Machines, reason: str) -> str:
    if place.count == 1:
        return f"error: port {job.port} could not be used ({reason}); run the same command again\n"
    return (
        f"error: the machines did not meet at {job.address}:{job.port} within {MEET_SECONDS} s ({reason}); "
        f"{environment.MASTER_ADDRESS} must be the host name of machine 0\n"
    )


def _settings(job: Job, place: Machines, folder: str, seconds: int) -> LaunchConfig:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std  # here: slow to import
    from torch.distributed.launcher.api import LaunchConfig

    hidden = {local: Std.ERR if local + place.index else Std.NONE for local in range(job.count)}
    return LaunchConfig(
        min_nodes=place.count,
        max_nodes=place.count,
        nproc_per_node=job.count,
        run_id="stage",
        rdzv_backend="static",
        rdzv_endpoint=f"{job.address}:{job.port}",
        rdzv_configs={"rank": place.index, "timeout": MEET_SECONDS},
        max_restarts=0,
        monitor_interval=0.05,
        logs_specs=DefaultLogsSpecs(folder, redirects=hidden),
        signals_to_handle="SIGQUIT",  # the others are ours
        shutdown_timeout=seconds,
    )


def kill_processes() -> None:
    """Kill the processes of this launcher that still run."""
    for process in psutil.Process().children():
        process.kill()


def _stopped(stop: Stop, seconds: float, left: Path) -> Outcome:
    """After a stop: 75, or the code that the main process left (it may not have been able to save)."""
    if stop.begun_at is None or stop.is_killed:
        return Outcome(TransientError.exit_code)
    if time.monotonic() - stop.begun_at >= int(seconds):
        return Outcome(
            _SIGNALLED + signal.SIGKILL,
            f"a process was killed {seconds:.0f} s after the stop ({environment.STOP_SECONDS}): what "
            "it was saving is lost\n",
        )
    return Outcome(int(left.read_text(encoding="utf-8")) if left.exists() else TransientError.exit_code)


def _failed(error: ChildFailedError, job: Job, place: Machines, folder: Path) -> Outcome:
    """The end that explains the others': a wrong setting or file, or else the first that torch saw."""
    failures = list(error.failures.items())
    rank, failure = next((each for each in failures if Outcome(each[1].exitcode).is_explained), failures[0])
    code, who = failure.exitcode, f"process {rank} of {job.count * place.count}"
    if code < 0:
        account = f"{who} was ended by {signal.Signals(-code).name}\n"
    elif rank > 0:
        account = f"{who} ended with exit code {code}:\n"
    else:
        account = ""  # its messages are on the screen
    for messages in folder.glob(f"*/*/{failure.local_rank}/stderr.log") if account else ():
        account += messages.read_text(encoding="utf-8", errors="replace")
    return Outcome(_SIGNALLED - code if code < 0 else code, account)


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside the block nothing is logged: torch reports what the outcome says."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
