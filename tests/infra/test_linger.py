"""infra/linger.py: a container lives as long as a training that saves; and all templates give it one time to do so."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from chunk_grpo.orchestration.pipeline import STOP_MARGIN
from chunk_grpo.stopping import STOP_SECONDS
from infra import local_prefect
from infra.linger import MARGIN
from tests.infra.deployment_files import INFRA, POOLS, ROOT, rendered, template
from tests.waiting import wait_for

STAGE = """
import signal, sys, time
from pathlib import Path
def save(number, frame):
    time.sleep(0.3)
    Path("saved").touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
Path("begun").touch()
time.sleep(60)
"""
COMMAND = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "stage.py"], start_new_session=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""
"""Starts a stage in a session of its own, and does not care for it."""

CONTAINER_SECONDS = STOP_SECONDS + 30
"""Seconds of a container from the stop request to SIGKILL."""


@pytest.mark.skipif(sys.platform != "linux", reason="in containers alone")
@pytest.mark.parametrize(("by", "code"), [("itself", 3), ("SIGTERM", 128 + signal.SIGTERM)])
def test_remaining_children_are_terminated_and_awaited(by: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "stage.py").write_text(STAGE)
    command = [sys.executable, "-m", "infra.linger", sys.executable, "-c", COMMAND, "2" if by == "itself" else "60"]
    with subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}) as process:
        wait_for((tmp_path / "begun").exists, 30, "the stage")
        if by == "SIGTERM":
            process.terminate()
        assert process.wait(30) == code
    assert (tmp_path / "saved").exists()


def test_outer_stop_timeouts_exceed_inner_ones() -> None:
    assert 0 < STOP_MARGIN < min(MARGIN, local_prefect.STOP_MARGIN) < CONTAINER_SECONDS - STOP_SECONDS


def test_containers_have_the_time_of_a_stop_as_the_documents_say() -> None:
    for pool in POOLS:
        pod = rendered(template("kubernetes", pool))["job_manifest"]["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] == CONTAINER_SECONDS
        (container,) = rendered(template("aws", pool))["task_definition"]["containerDefinitions"]
        assert container["stopTimeout"] == (CONTAINER_SECONDS if pool == "gpu" else 120)  # the most of Fargate
    services = yaml.safe_load((INFRA / "compose.yaml").read_text("utf-8"))["services"]
    for name in ("worker-cpu", "worker-gpu", "worker-gpu-without-gpu"):
        assert services[name]["stop_grace_period"] == f"{CONTAINER_SECONDS}s"
    job = (INFRA / "slurm" / "machines.sbatch").read_text("utf-8")
    assert f"#SBATCH --signal=B:USR1@{CONTAINER_SECONDS}\n" in job
    assert f"TimeoutStopSec={CONTAINER_SECONDS}\n" in (ROOT / "docs" / "team.md").read_text("utf-8")
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    assert re.search(rf"CHUNK_GRPO_STOP_SECONDS[^\n]*\b{STOP_SECONDS}\b", text)
