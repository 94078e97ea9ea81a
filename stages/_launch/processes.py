"""Run a stage in several processes: start them, return one exit code.

There is one process per GPU, or on CPUs the number that params.yaml sets.

The command line is the same as for one process, because DVC compares it. On several machines this is the launcher of
machine 0 (`machines`).
"""

from __future__ import annotations

import os
import socket
import sys
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from chunk_grpo import environment
from chunk_grpo.artifacts.manifest import Notes
from chunk_grpo.config import Params
from chunk_grpo.errors import ChunkGrpoError, ConfigError
from chunk_grpo.gpus import has_gpu
from chunk_grpo.stopping import stop_seconds
from stages._launch.elastic import Job, Machines, Outcome, Stop, launch
from stages._launch.machines import Board, machines_of_environment
from stages._stage import Arguments, leave_code, parsed, report_error, run_stage


def run_processes(
    main: Callable[[Params, Arguments], Notes | None],
    arguments: type[Arguments],
    divisible: Callable[[Params, Arguments], int | None] = lambda params, arguments: None,
    on_cpus: Callable[[Params], int] | None = None,
) -> int:
    """Run a stage in this process, or in several processes: one per GPU, or without GPUs `on_cpus` (None: one).

    `main`, as in `run_stage`, must support that. The process count divides `divisible` (None: any), unless the
    environment sets it. Returns the exit code; with several processes, the code of the first one that failed.
    """
    if "RANK" in os.environ:  # one of several processes, of this launcher, accelerate or torchrun
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
        job = Job(
            uuid.uuid4().hex,
            sys.orig_argv[1:],
            str(Path.cwd()),
            os.environ.get("DVC_STAGE"),
            count,
            machines.address,
            _free_port(),
        )
        outcome = _on_all(machines, job, seconds, on_cpu=gpus == 0)
    except ChunkGrpoError as error:
        return leave_code(report_error(error))
    sys.stderr.write(outcome.account)
    return leave_code(outcome.code)


def _on_all(machines: Machines, job: Job, seconds: float, *, on_cpu: bool) -> Outcome:
    stop = Stop()
    if machines.count == 1:
        return launch(job, machines, stop, seconds, on_cpu=on_cpu)
    with closing(Board(machines, seconds)) as board:
        board.call(job)
        return board.together(job.name, stop, lambda: launch(job, machines, stop, seconds, on_cpu=on_cpu))


def _asked(gpus: int) -> int | None:
    """The number of processes set in the environment, at least 1 and with GPUs at most `gpus`, or None."""
    count = environment.whole_number(environment.PROCESSES, None)
    if count is not None and 0 < gpus < count:
        raise ConfigError(f"{environment.PROCESSES}: must be at most the number of GPUs {gpus}, got {count}")
    return count


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
    if not has_gpu():
        return 0
    import torch  # here: slow to import

    return int(torch.cuda.device_count())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
