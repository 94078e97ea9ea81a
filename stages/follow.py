"""Take part in the stages that machine 0 runs, until stopped.

Machine 0 runs a stage as always: by `dvc repro`, in a flow, or by `python -m`. This program runs on each other machine,
with PET_NNODES, the number of machines, and PET_NODE_RANK, this one's from 1. CHUNK_GRPO_MACHINES names a folder, the
same on all. It, the stage's folder and the DVC cache are on a disk that all machines see at the same path.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from chunk_grpo import environment
from chunk_grpo.errors import ChunkGrpoError, ConfigError, TransientError
from chunk_grpo.stopping import stop_seconds
from stages._launch.elastic import Job, Stop, launch
from stages._launch.machines import Board, machines_of_environment
from stages._launch.processes import gpus_here
from stages._stage import report_error


def main(argv: Sequence[str] | None = None) -> int:
    """Follow machine 0 until a stop signal arrives; exit code 2 bad configuration, 75 stopped."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(argv)
    try:
        machines, seconds = machines_of_environment(), stop_seconds()
        if machines.index == 0:
            raise ConfigError(
                f"{environment.MACHINE}: must be at least 1 (and {environment.MACHINES} at least 2) on a machine that "
                "follows; machine 0 runs the stages themselves"
            )
        board = Board(machines, seconds)
    except ChunkGrpoError as error:
        return report_error(error)
    who, gpus, last = f"machine {machines.index} of {machines.count}", gpus_here(), ""
    sys.stderr.write(f"{who} waiting for stages in {machines.folder}\n")
    while True:
        job = board.next_job(last)
        last, title = job.name, " ".join(job.arguments)
        refusal = refusal_of(job, gpus)
        board.answer(job, refusal)
        if refusal:
            sys.stderr.write(f"{who} refused {title}: {refusal}\n")
            continue
        sys.stderr.write(f"{who} began {title}\n")
        stop = Stop()
        enter(job)
        outcome = board.together(
            job.name,
            stop,
            lambda: launch(job, machines, stop, seconds, on_cpu=gpus == 0),  # noqa: B023
        )
        sys.stderr.write(f"{who} ended {title} with exit code {outcome.code}\n{outcome.account}")
        if stop.begun_at is not None and not board.is_asked:
            return TransientError.exit_code


def refusal_of(job: Job, gpus: int) -> str:
    """Reason why this machine cannot run its part of a stage, or ""."""
    if not Path(job.folder).is_dir():
        return f"{job.folder}: must be on a disk that all machines see at the same path; mount it there"
    if 0 < gpus < job.count:
        return (
            f"it has {gpus} GPUs, and must have at least {job.count}, as machine 0 uses; set "
            f"{environment.PROCESSES} to {gpus} on machine 0"
        )
    return ""


def enter(job: Job) -> None:
    """Go where the stage runs, and take its code from where machine 0 does (`stages/__init__.py`)."""
    os.chdir(job.folder)
    os.environ.pop("DVC_STAGE", None)
    os.environ |= {} if job.stage is None else {"DVC_STAGE": job.stage}


if __name__ == "__main__":
    sys.exit(main())
