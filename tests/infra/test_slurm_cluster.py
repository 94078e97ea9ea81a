"""infra/slurm on a real SLURM: four nodes on this host, each with a slurmd."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.checkpoints import newest
from tests.conftest import ROOT, VARIANT, Workspace
from tests.real_checkout import make_checkout, python
from tests.s3_server import free_port
from tests.stages.started import STAGE
from tests.waiting import wait_for

NODES = ("n1", "n2", "n3", "n4")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel")
GOING_ON = ("PENDING", "CONFIGURING", "RUNNING", "SIGNALING", "COMPLETING", "REQUEUED")
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
AuthInfo=socket={folder}/munge.socket,cred_expire=5
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
            "PYTHONPATH": f"{work}:{ROOT}",
        }
        return subprocess.run(
            command, cwd=work, env=os.environ | variables, check=True, timeout=60, stdout=subprocess.PIPE, text=True
        ).stdout

    def submit(self, work: Path, nodes: int, *command: str, options: Sequence[str] = ()) -> str:
        """Number of a new job."""
        script = str(ROOT / "infra" / "slurm" / "machines.sbatch")
        common = ["--parsable", f"--nodes={nodes}", "--output=job.out"]
        return self.run(work, "sbatch", *common, *options, script, *command).strip()

    def shown(self, work: Path, job: str, name: str) -> str:
        """A value of `scontrol show job`."""
        (found,) = re.findall(rf"\b{name}=(\S+)", self.run(work, "scontrol", "show", "job", job))
        return str(found)

    def ended(self, work: Path, job: str, seconds: float = 120) -> tuple[str, str]:
        """State and output of a job that has ended."""

        def state() -> str:
            found = self.shown(work, job, "JobState")
            return "" if found in GOING_ON else found

        return wait_for(state, seconds, f"end of job {job}"), (work / "job.out").read_text()


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


def stage(work: str) -> list[str]:
    options = ["--params", str(ROOT / "params.yaml"), "--manifest", "runs/test@a.json"]
    return ["python", "-m", "stages.started", *options, "--out", "out", "--work", work]


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_each_node_has_its_rank_and_its_part_of_a_stage(
    nodes: int, cluster: Cluster, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a cluster ends a step of which one task fails."""
    monkeypatch.setenv("SLURM_KILL_BAD_EXIT", "1")
    state, output = cluster.ended(checkout, cluster.submit(checkout, nodes, *stage("nothing")), 300)
    assert state == "COMPLETED", output
    ranks = sorted((checkout / "ranks").read_text().splitlines())
    assert ranks == [f"{node} has rank {rank} of {nodes}" for rank, node in enumerate(NODES[:nodes])]
    assert {path.name: path.read_text().split()[0] for path in (checkout / "out").iterdir()} == {
        str(rank): "tiny" for rank in range(nodes)
    }
    assert not list((checkout / ".dvc" / "tmp").iterdir())


def hangs_once() -> list[str]:
    """A stage that waits for ever the first time, and does nothing when its job is queued again."""
    twice = "if [ -e begun ]; then work=nothing; else touch begun; work=hang; fi; "
    return ["bash", "-c", f"{twice}echo $work; exec {' '.join(stage('$work'))}"]


def test_a_killed_follower_is_named_and_the_job_is_queued_again(cluster: Cluster, checkout: Path) -> None:
    """With the log of both runs."""
    job = cluster.submit(checkout, 2, *hangs_once())
    wait_for(lambda: (checkout / "out" / "1").exists(), 120, "the follower's process")
    cluster.run(checkout, "scancel", "--signal=KILL", f"{job}.0")
    state, output = cluster.ended(checkout, job, 300)
    assert state == "COMPLETED", output
    assert output.index("hang\n") < output.index("machine 1 of 2 is lost") < output.index("nothing\n")


def test_a_job_is_queued_again_where_a_killed_follower_ends_the_step_of_all(
    cluster: Cluster, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KillOnBadExit, a setting of clusters: the other follower ends, too."""
    monkeypatch.setenv("SLURM_KILL_BAD_EXIT", "1")
    job = cluster.submit(checkout, 3, *hangs_once())
    wait_for(lambda: (checkout / "out" / "2").exists(), 120, "the followers' processes")
    follower(checkout, 1).kill()
    state, output = cluster.ended(checkout, job, 300)
    assert (state, cluster.shown(checkout, job, "Restarts")) == ("COMPLETED", "1"), output
    assert output.index("hang\n") < output.index("machine 1 of 3 is lost") < output.index("nothing\n")


def follower(folder: Path, rank: int) -> psutil.Process:
    """The process of `stages.follow` in a folder."""
    seen = [each for each in psutil.process_iter(["cmdline", "cwd", "environ"]) if each.info["cmdline"]]
    (found,) = (
        each
        for each in seen
        if "stages.follow" in each.info["cmdline"]
        and each.info["cwd"] == str(folder)
        and (each.info["environ"] or {}).get("PET_NODE_RANK") == str(rank)
    )
    return found


SAVES = """
[ -e saved ] && exit
trap 'sleep 5; touch saved; exit 75' TERM
touch begun
while true; do sleep 0.1; done
"""


@pytest.mark.parametrize(
    ("options", "end", "saves"),
    [
        (["--signal=TERM", "--batch"], ("FAILED", "75:0"), True),
        (["--signal=USR1", "--batch"], ("COMPLETED", "0:0"), True),
        ([], ("CANCELLED", "0:9"), False),
    ],
    ids=["asked", "requeued", "plain"],
)
def test_a_cancelled_job_saves_if_it_is_asked_to_and_not_by_a_plain_scancel(
    options: list[str], end: tuple[str, str], saves: bool, cluster: Cluster, checkout: Path
) -> None:
    """A save that takes longer than KillWait, which is 30 s on most clusters and 2 s here."""
    job = cluster.submit(checkout, 1, "bash", "-c", SAVES)
    wait_for((checkout / "begun").exists, 60, "the command")
    cluster.run(checkout, "scancel", *options, job)
    state, output = cluster.ended(checkout, job)
    assert (state, cluster.shown(checkout, job, "ExitCode")) == end, output
    assert (checkout / "saved").exists() is saves


def test_the_signal_before_the_time_limit_saves_and_queues_the_job_again(cluster: Cluster, checkout: Path) -> None:
    job = cluster.submit(checkout, 1, "bash", "-c", SAVES, options=["--time=2", "--signal=B:USR1@60"])
    state, output = cluster.ended(checkout, job, 240)
    assert (state, (checkout / "saved").exists()) == ("COMPLETED", True), output
    assert cluster.shown(checkout, job, "Restarts") == "1"


@pytest.mark.timeout(1800)
def test_a_training_on_two_nodes_goes_on_after_the_time_limit_to_the_same_bytes(
    cluster: Cluster, checkout: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.schedule(prompts_per_iteration=4, iterations=4, checkpoint_every=1)
    shutil.rmtree(workspace.artifacts / "train" / VARIANT)
    shutil.copytree(workspace.root, checkout / "alone")
    alone = Workspace(checkout / "alone")
    with monkeypatch.context() as patch:
        patch.setenv("CHUNK_GRPO_PROCESSES", "2")
        alone.finish("train")
    shutil.copytree(checkout / "bin", workspace.root / "bin")
    module, options = workspace.options("train")
    job = cluster.submit(workspace.root, 2, "python", "-m", module, *options)
    wait_for(lambda: newest(workspace.root) > 0, 400, "a checkpoint")
    cluster.run(workspace.root, "scancel", "--signal=USR1", "--batch", job)
    state, output = cluster.ended(workspace.root, job, 600)
    assert state == "COMPLETED", output
    assert cluster.shown(workspace.root, job, "Restarts") == "1", output
    assert workspace.trained() == alone.trained() != {}


@pytest.mark.timeout(3600)
def test_the_smoke_preset_comes_to_its_report_on_two_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """By the command of docs/deploy.md, which runs `dvc repro`."""
    work = make_checkout(tmp_path / "checkout")
    composed = python(work, "-m", "chunk_grpo", "params", "compose", "smoke", "--force")
    assert composed.returncode == 0, composed.stderr
    state, output = cluster.ended(work, cluster.submit(work, 2), 3000)
    assert state == "COMPLETED", output
    assert "machine 1 of 2 began -m stages.train" in output
    assert (work / "artifacts" / "report" / "index.html").exists()
