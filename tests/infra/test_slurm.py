"""infra/slurm: the first machine runs the command, the others follow, and a stop saves a checkpoint."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.waiting import wait_for

SCRIPT = ROOT / "infra" / "slurm" / "machines.sbatch"

PROGRAMS = {
    "scontrol": 'echo "$1 $2 $3" >> calls; echo first; echo second; echo third',
    # Starts the tasks here, as SLURM would on the other machines.
    "srun": """echo "$@" >> calls
while [ "${1#--}" != "$1" ]; do shift; done
SLURM_PROCID=0 "$@" & SLURM_PROCID=1 "$@" & wait""",
    "python": """echo "$PET_NODE_RANK of $PET_NNODES at $PET_MASTER_ADDR:$PET_MASTER_PORT: python $*" >> calls
exec sleep 60""",
    "dvc": 'echo "$PET_NODE_RANK of $PET_NNODES at $PET_MASTER_ADDR:$PET_MASTER_PORT: dvc $*" >> calls',
    # A command that ends at once when it is stopped, while its stage still saves.
    "stage": """(
trap 'sleep 2; echo saved >> calls; exit 75' TERM
echo begun >> calls
while true; do sleep 0.1; done
) &
trap 'exit 75' TERM
wait""",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, code in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/bash\n{code}\n")
        program.chmod(0o755)
    return tmp_path


@contextmanager
def submitted(folder: Path, *command: str, nodes: int = 3) -> "Iterator[subprocess.Popen[str]]":
    """The job script, as SLURM starts it on the first machine."""
    variables = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NODELIST": "first,second,third",
    }
    with subprocess.Popen(
        ["bash", str(SCRIPT), *command],
        cwd=folder,
        env=os.environ | variables,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def calls(folder: Path) -> set[str]:
    path = folder / "calls"
    return set(path.read_text().splitlines()) if path.exists() else set()


def test_the_first_machine_runs_dvc_and_the_others_follow_until_it_ends(folder: Path) -> None:
    with submitted(
        folder, "bash", "-c", "while [ $(grep -c stages.follow calls) -lt 3 ]; do sleep 0.1; done; dvc x"
    ) as job:
        assert job.wait(timeout=30) == 0
    follow = "bash -c PET_NODE_RANK=$((SLURM_PROCID + 1)) exec python -m stages.follow"
    assert calls(folder) == {
        "show hostnames first,second,third",
        f"--nodes=2 --relative=1 --ntasks-per-node=1 {follow}",
        "1 of 3 at first:29500: python -m stages.follow",
        "2 of 3 at first:29500: python -m stages.follow",
        "0 of 3 at first:29500: dvc x",
    }


def test_one_machine_needs_no_srun_and_runs_dvc_repro(folder: Path) -> None:
    with submitted(folder, nodes=1) as job:
        assert job.wait(timeout=30) == 0
    assert calls(folder) == {"show hostnames first,second,third", "0 of 1 at first:29500: dvc repro"}


def test_the_exit_code_is_the_commands(folder: Path) -> None:
    with submitted(folder, "bash", "-c", "exit 3", nodes=1) as job:
        assert job.wait(timeout=30) == 3


def test_a_stop_reaches_the_stage_and_the_job_waits_for_its_checkpoint(folder: Path) -> None:
    with submitted(folder, "stage", nodes=1) as job:
        wait_for(lambda: "begun" in calls(folder), 30, "the stage")
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=30) == 75
        assert "saved" in calls(folder)
