"""infra/slurm on one machine: the command runs, and a stop saves a checkpoint.

tests/infra/test_slurm_cluster.py has several machines and a real SLURM.
"""

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
    "scontrol": 'echo "NodeName=$3 Arch=x86_64 NodeAddr=address-of-$3 NodeHostName=host"',
    "srun": "echo srun >> calls",
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
def submitted(folder: Path, *command: str) -> "Iterator[subprocess.Popen[str]]":
    """The job script, as SLURM starts it on the first machine."""
    variables = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "SLURM_NNODES": "1",
        "SLURMD_NODENAME": "first",
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


def test_one_machine_needs_no_srun_and_runs_dvc_repro(folder: Path) -> None:
    with submitted(folder) as job:
        assert job.wait(timeout=30) == 0
    assert calls(folder) == {"0 of 1 at address-of-first:29500: dvc repro"}


def test_the_exit_code_is_the_commands(folder: Path) -> None:
    with submitted(folder, "bash", "-c", "exit 3") as job:
        assert job.wait(timeout=30) == 3


def test_a_stop_reaches_the_stage_and_the_job_waits_for_its_checkpoint(folder: Path) -> None:
    with submitted(folder, "stage") as job:
        wait_for(lambda: "begun" in calls(folder), 30, "the stage")
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=30) == 75
        assert "saved" in calls(folder)
