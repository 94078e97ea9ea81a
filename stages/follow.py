"""Take part in the stages that machine 0 runs, until stopped.

Machine 0 runs a stage as always: by `dvc repro`, in a flow, or by `python -m`. This program runs on each other machine,
with the same four variables of torchrun, PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, and the same
key in the file that CHUNK_GRPO_MACHINES_KEY names. It waits for a stage that is signed with the key, runs this
machine's part of its processes, and waits for the next stage. Outputs are written on machine 0.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chunk_grpo import environment
from chunk_grpo.code import COPY, ROOT, code_digest
from chunk_grpo.errors import ChunkGrpoError, ConfigError, TransientError
from chunk_grpo.stopping import stop_seconds
from stages._launch.machines import (
    Link,
    Machines,
    Outcome,
    Ticket,
    is_stage,
    machines_of_environment,
    next_ticket,
)
from stages._launch.processes import Share, gpus_here, launch
from stages._stage import report_error


def main(argv: Sequence[str] | None = None) -> int:
    """Follow machine 0 until a stop signal arrives; exit code 2 bad configuration, 75 stopped."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help="run stages in the current folder, a clone of the repository, and receive their inputs from machine 0; "
        "without it the stage's folder must be on a disk that both machines see at the same path",
    )
    here: bool = parser.parse_args(argv).here
    try:
        machines = machines_of_environment()
        if machines.index == 0:
            raise ConfigError(
                f"{environment.MACHINE}: must be at least 1 (and {environment.MACHINES} at least 2) on a machine that "
                "follows; machine 0 runs the stages themselves"
            )
        seconds, own = stop_seconds(), code_digest()
    except ChunkGrpoError as error:
        return report_error(error)
    _say(machines, f"waiting for stages of {machines.address}:{machines.port}")
    while True:
        store, ticket, offer = next_ticket(machines)
        refusal = refusal_of(ticket, here, own)
        store.set(f"answer/{offer}", refusal)
        if refusal:
            _say(machines, f"refused a stage: {refusal}")
            continue
        link = Link(store, machines, ticket)
        del store
        _say(machines, f"began {_title(ticket)}")
        outcome, is_stopped = follow(ticket, machines, link, here, seconds)
        _say(machines, f"ended {_title(ticket)} with exit code {outcome.code}")
        sys.stderr.write(outcome.account)
        if is_stopped:
            return TransientError.exit_code


def refusal_of(ticket: Ticket, here: bool, own: str) -> str:
    """Reason why this machine cannot run its part of a stage, or ""; `own` is the code that it started with."""
    if not here and not Path(ticket.folder).is_dir():
        return (
            f"{ticket.folder}: must be on a disk that all machines see at the same path. Mount it, or start "
            "`python -m stages.follow --here` in a clone of the repository"
        )
    if ticket.code != own:
        return "its code differs from that of machine 0: check out the same commit there, and start it again"
    if not is_stage(ticket.arguments):
        return f"it runs `python -m stages.NAME` only, and was asked to run {_title(ticket)}"
    if _code_of(ticket, here) is None:
        return (
            f"{ROOT if here else ticket.folder}: must hold the code with which this machine started, and has none or "
            "was edited; start it again in a checkout"
        )
    if 0 < (gpus := gpus_here()) < ticket.processes:
        return (
            f"it has {gpus} GPUs, and must have at least {ticket.processes}, as machine 0 uses; set "
            f"{environment.PROCESSES} to {gpus} on machine 0"
        )
    return ""


def follow(
    ticket: Ticket, machines: Machines, link: Link, here: bool, seconds: float
) -> tuple[Outcome, bool]:
    """Run this machine's part of a stage, with the parameters of machine 0."""
    share = Share(ticket.processes, machines, ticket.port, link)
    before, code = Path.cwd(), _code_of(ticket, here)
    os.environ.pop("DVC_STAGE", None)
    if code is not None and code.name == COPY.name:
        os.environ["DVC_STAGE"] = ticket.arguments[1]  # so `stages/__init__.py` takes the code from the copy
    with tempfile.TemporaryDirectory(prefix="follow-") as folder:
        params = Path(folder, "params.yaml")
        params.write_text(ticket.params, encoding="utf-8")
        os.chdir(before if here else ticket.folder)
        try:
            arguments = [*ticket.arguments, "--params", str(params)]
            return launch(arguments, share, seconds, on_cpu=gpus_here() == 0)
        finally:
            os.chdir(before)


def _code_of(ticket: Ticket, here: bool) -> Path | None:
    """Where this machine has the code of a stage: in the copy of DVC's run, or in the checkout."""
    places = [ROOT] if here else [Path(ticket.folder, COPY), Path(ticket.folder)]
    return next((place for place in places if code_digest(place) == ticket.code), None)


def _title(ticket: Ticket) -> str:
    """The stage's module and options, as a command line."""
    return " ".join(ticket.arguments)


def _say(machines: Machines, text: str) -> None:
    sys.stderr.write(f"machine {machines.index} of {machines.count} {text}\n")


if __name__ == "__main__":
    sys.exit(main())
