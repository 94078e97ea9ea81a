"""Run a stage in several processes: start them, forward stop signals, return one exit code.

There is one process per GPU, or on CPUs the number that params.yaml sets.

The command line is the same as for one process, because DVC compares it. torchrun is not used: it always fails with
exit code 1, and the flows need the exit code to distinguish a stopped stage (75) from a failed one. Its variables for
several machines are used (`machines`).
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunk_grpo import environment
from chunk_grpo.code import code_digest
from chunk_grpo.config import Params
from chunk_grpo.errors import ChunkGrpoError, ConfigError
from chunk_grpo.machines import send_files
from chunk_grpo.parallel import Workers
from chunk_grpo.stopping import stop_seconds
from stages._launch.group import Group
from stages._launch.machines import (
    Link,
    Machines,
    Outcome,
    Ticket,
    call,
    is_stage,
    machines_of_environment,
)
from stages._stage import Arguments, inputs_of, mark_as_run, parameter_file, parsed, report_error, run_stage


def run_processes(
    main: Callable[[Params, Arguments], None],
    arguments: type[Arguments],
    divisible: Callable[[Params, Arguments], int | None] = lambda params, arguments: None,
    on_cpus: Callable[[Params], int] | None = None,
) -> int:
    """Run a stage in this process, or in several processes: one per GPU, or without GPUs `on_cpus` (None: one).

    `main`, as in `run_stage`, must support that. The process count divides `divisible` (None: any), unless the
    environment sets it. Returns the exit code; with several processes, that of the first one that failed.
    """
    if (
        "RANK" in os.environ
    ):  # already one of several processes, started by this module, accelerate or torchrun
        return run_stage(main, arguments)
    try:
        machines = machines_of_environment()
        if machines.index > 0:
            raise ConfigError(
                f"{environment.MACHINE}: must be 0 where a stage is started, got {machines.index}; run "
                "`python -m stages.follow` here, and the stage on machine 0"
            )
        gpus = gpus_here()
        count = _asked(gpus)
        if count is None:
            most = gpus or (1 if on_cpus is None else on_cpus(parsed(main, arguments)[0]))
            unit = "GPUs" if gpus else "processes"
            count = _fitting(most, machines.count, lambda: divisible(*parsed(main, arguments)), unit)
        seconds = stop_seconds()
        if count * machines.count <= 1:
            return run_stage(main, arguments)
        mark_as_run()
        command, port, link = sys.orig_argv[1:], _free_port(), None
        if machines.count > 1:
            if not is_stage(command):
                raise ConfigError(
                    f"{environment.MACHINES}: several machines run `python -m stages.NAME`, got {shlex.join(command)}; "
                    "start the stage so"
                )
            text = parameter_file(main, arguments).read_text(encoding="utf-8")
            ticket = Ticket(command, str(Path.cwd()), text, code_digest(), count, port)
            link = call(machines, ticket)
    except ChunkGrpoError as error:
        return report_error(error)
    outcome, _ = launch(command, Share(count, machines, port, link), seconds, on_cpu=gpus == 0)
    sys.stderr.write(outcome.account)
    return outcome.code


def joined(arguments: Any) -> Workers:
    """Join the other processes of the stage; what it reads is then on all machines."""
    workers = Workers()
    send_files(inputs_of(arguments))
    return workers


@dataclass(frozen=True)
class Share:
    """The processes that a launcher starts."""

    count: int
    """Number of processes on this machine, and on each other one."""
    machines: Machines
    """This machine's place."""
    port: int
    """Port on machine 0 where the processes meet."""
    link: Link | None = None
    """Exchange with the other machines; None: this machine is alone."""


def launch(arguments: Sequence[str], share: Share, seconds: float, *, on_cpu: bool) -> tuple[Outcome, bool]:
    """Run Python in several processes with the environment variables of torchrun.

    The stderr of process 0 is shown live. The stderr of another process is in the outcome if it was the first to fail.
    `seconds` is from a stop request to SIGKILL. Processes that use no GPU (`on_cpu`) have one thread each, so that they
    do not compete for the cores. Returns how they ended, here or on another machine, and whether a stop signal arrived
    here.
    """
    count, machines = share.count, share.machines
    total, first = count * machines.count, count * machines.index
    shared = {
        "WORLD_SIZE": total,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": machines.address,
        "MASTER_PORT": share.port,
        environment.PARENT: os.getpid(),
    }
    shared |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"} if on_cpu else {}
    with tempfile.TemporaryDirectory(prefix="processes-") as folder:
        shared[environment.SAVING] = Path(folder, "saving")
        group = Group(Path(folder, "saving"), seconds, total, first, share.link)
        try:
            with group.stopped_by_signals():
                for place in range(count):
                    variables = {**shared, "RANK": first + place, "LOCAL_RANK": place}
                    group.add(
                        [sys.executable, *arguments],
                        os.environ | {name: str(value) for name, value in variables.items()},
                        None if first + place == 0 else Path(folder, str(place)),
                    )
                outcome = group.wait()
        finally:
            if share.link is not None:
                share.link.close()
    return outcome, group.is_interrupted


def _asked(gpus: int) -> int | None:
    """The number of processes set in the environment, at least 1 and with GPUs at most `gpus`, or None."""
    value = os.environ.get(environment.PROCESSES)
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"{environment.PROCESSES}: must be a number of at least 1, got {value!r}")
    if 0 < gpus < int(value):
        raise ConfigError(f"{environment.PROCESSES}: must be at most the number of GPUs {gpus}, got {value}")
    return int(value)


def _fitting(most: int, machines: int, total: Callable[[], int | None], unit: str = "GPUs") -> int:
    """The largest number of processes a machine, at most `most`, that divides `total`; 0: one process in all.

    A message names the unused ones; `unit` is what `most` counts on each machine. All machines' processes together must
    divide `total`; 1: one process; None: any. A number of machines that does not divide it is a ConfigError.
    """
    if most * machines == 1 or (share := total()) is None:
        return most
    if share == 1:
        return 0
    if share % machines:
        raise ConfigError(
            f"{environment.MACHINES}: must divide the {share} trajectories of an update evenly, got {machines}; change "
            "train.prompts_per_iteration or train.group_size, or use fewer machines"
        )
    count = max(count for count in range(1, most + 1) if share % (count * machines) == 0)
    if count < most:
        each = " of each machine" if machines > 1 else ""
        sys.stderr.write(
            f"{count} of {most} {unit}{each} are used: the {share} trajectories of an update cannot be divided evenly "
            "among more. Change train.prompts_per_iteration or train.group_size to use all.\n"
        )
    return count


def gpus_here() -> int:
    """Number of GPUs that this process sees."""
    import torch  # here: slow to import

    return int(torch.cuda.device_count())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
