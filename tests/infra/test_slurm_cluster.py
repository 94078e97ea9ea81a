"""infra/slurm on a real SLURM: four nodes on this host, each with a slurmd."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.stages.started import STAGE
from tests.waiting import wait_for

NODES = ("n1", "n2", "n3", "n4")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)} (apt-get install slurm-wlm munge)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="daemons of SLURM run as root"),
]

CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
KillWait=2
PartitionName=all Nodes=n[1-4] Default=YES State=UP
"""

PYTHON = """#!/bin/bash
echo "$SLURMD_NODENAME has rank $PET_NODE_RANK of $PET_NNODES" >> ranks
exec {python} "$@"
"""


@dataclass(frozen=True)
class Cluster:
    """A SLURM of four nodes."""

    folder: Path
    """Folder of its configuration."""

    def run(self, work: Path, *command: str) -> str:
        """Output of a command of SLURM."""
        variables = {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": f"{work / 'bin'}:{os.environ['PATH']}",
            "CHUNK_GRPO_PROCESSES": "1",
            "PET_MASTER_PORT": str(free_port()),
        }
        return subprocess.run(
            command,
            cwd=work,
            env=os.environ | variables,
            check=True,
            timeout=60,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def submit(self, work: Path, nodes: int, *command: str) -> str:
        """Number of a new job."""
        script = str(ROOT / "infra" / "slurm" / "machines.sbatch")
        options = ["--parsable", f"--nodes={nodes}", "--output=job.out"]
        return self.run(work, "sbatch", *options, script, *command).strip()

    def ended(self, work: Path, job: str, seconds: float = 120) -> tuple[str, str]:
        """State and output of a job that has ended."""

        def state() -> str:
            (found,) = re.findall(r"JobState=(\w+)", self.run(work, "scontrol", "show", "job", job))
            return "" if found in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING") else str(found)

        return wait_for(state, seconds, f"end of job {job}"), (work / "job.out").read_text()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    lines = CONFIGURATION.format(host=socket.gethostname(), port=free_port(), folder=folder)
    for name in NODES:
        (folder / f"spool-{name}").mkdir()
        host = f"NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={free_port()}"
        lines += f"NodeName={name} {host} CPUs=2 Gres=gpu:8 State=UNKNOWN\n"
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(lines)
    for number in range(8):
        (folder / f"gpu{number}").touch()
    gpus = (f"NodeName={name} Name=gpu File={folder}/gpu[0-7]\n" for name in NODES)
    (folder / "gres.conf").write_text("".join(gpus))
    (folder / "munge.key").touch(mode=0o600)
    (folder / "munge.key").write_bytes(os.urandom(128))
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munge = [f"--{option}={folder}/munge.{name}" for option, name in files.items()]
    daemons = [
        ["munged", "--foreground", "--force", *munge],
        ["slurmctld", "-D", "-c"],
        *(["slurmd", "-D", "-N", name] for name in NODES),
    ]
    found = Cluster(folder)
    with ExitStack() as running, (folder / "log").open("wb") as log:
        for command in daemons:
            daemon = subprocess.Popen(
                command, env=os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}, stdout=log, stderr=log
            )
            running.callback(daemon.wait)
            running.callback(daemon.terminate)
            if command[0] == "munged":
                wait_for((folder / "munge.socket").exists, 30, "munge")
        idle = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
        wait_for(lambda: found.run(folder, *idle).strip() == "4", 60, "four nodes")
        yield found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the code, to which a stage for tests is added."""
    shutil.copytree(ROOT / "stages", tmp_path / "stages")
    (tmp_path / "stages" / "started.py").write_text(STAGE)
    (tmp_path / "chunk_grpo").symlink_to(ROOT / "chunk_grpo")
    for name in ("bin", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "python").write_text(PYTHON.format(python=sys.executable))
    (tmp_path / "bin" / "python").chmod(0o755)
    return tmp_path


def test_each_of_four_nodes_has_its_rank_and_its_part_of_a_stage(cluster: Cluster, checkout: Path) -> None:
    options = ["--params", str(ROOT / "params.yaml"), "--manifest", "runs/test@a.json"]
    stage = ["python", "-m", "stages.started", *options, "--out", "out", "--work", "nothing"]
    state, output = cluster.ended(checkout, cluster.submit(checkout, 4, *stage), 300)
    assert state == "COMPLETED", output
    ranks = sorted((checkout / "ranks").read_text().splitlines())
    print(*ranks, sep="\n")  # noqa: T201  # what this test is for
    assert ranks == [f"{node} has rank {rank} of 4" for rank, node in enumerate(NODES)]
    assert {path.name: path.read_text() for path in (checkout / "out").iterdir()} == {
        str(rank): "tiny 4 true 1" for rank in range(4)
    }
    assert not list((checkout / ".dvc" / "tmp").iterdir())


SAVES = """
trap 'sleep 5; touch saved; exit 75' TERM
touch begun
while true; do sleep 0.1; done
"""


@pytest.mark.parametrize(
    ("options", "saves"), [(["--signal=TERM", "--batch"], True), ([], False)], ids=["asked", "plain"]
)
def test_a_cancelled_job_saves_if_it_is_asked_to_and_not_by_a_plain_scancel(
    options: list[str], saves: bool, cluster: Cluster, checkout: Path
) -> None:
    """A save that takes longer than KillWait, which is 30 s on most clusters and 2 s here."""
    job = cluster.submit(checkout, 1, "bash", "-c", SAVES)
    wait_for((checkout / "begun").exists, 60, "the command")
    begun = time.monotonic()
    cluster.run(checkout, "scancel", *options, job)
    state, _ = cluster.ended(checkout, job)
    assert (state, (checkout / "saved").exists()) == (("FAILED", True) if saves else ("CANCELLED", False))
    assert time.monotonic() - begun < 60
