"""Stages whose work several processes share."""

import subprocess
import sys

import pytest

from chunk_grpo.environment import PROCESSES
from chunk_grpo.parallel import Workers
from tests.conftest import Workspace
from tests.s3_server import free_port
from tests.training.worker import environment

WORK = """
import os, signal
from chunk_grpo.errors import ChunkGrpoError, DataError
from chunk_grpo.parallel import Workers
from stages._stage import leave_group

def work(job):
    if job == 3 and what == "refused":
        raise DataError("job 3")
    if job == 3 and what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return job * 10

workers = Workers()
for what in ("done", "refused", "killed"):
    print(what)
    try:
        for result in workers.in_order(range(5), work):
            print(result)
    except ChunkGrpoError as error:
        print(f"{type(error).__name__}: {error}")
leave_group()
"""


def test_one_process_does_all_jobs() -> None:
    workers = Workers()
    assert workers.is_main
    assert list(workers.in_order(range(3), str)) == ["0", "1", "2"]


def test_the_main_process_gets_the_results_in_order_and_both_the_error_or_the_end_of_one() -> None:
    """Two processes share five jobs, three times: all succeed, the fourth is refused, or kills its process."""
    port = free_port()
    command = [sys.executable, "-u", "-c", WORK]
    main, other = [
        subprocess.Popen(command, env=environment(rank, port, "cpu"), stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    assert main.communicate(timeout=120)[0].split() == [
        *("done", "0", "10", "20", "30", "40"),
        *("refused", "0", "10", "DataError:", "job", "3"),
        *("killed", "0", "10", "TransientError:", "another", "process", "has", "ended"),
    ]
    assert other.communicate(timeout=120)[0].split() == ["done", "refused", "DataError:", "job", "3", "killed"]
    assert (main.returncode, other.returncode) == (0, -9)


@pytest.mark.slow
def test_the_bytes_of_a_training_do_not_depend_on_the_cores(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PROCESSES, raising=False)
    workspace.schedule(cpu_processes=2)
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        workspace.finish("train")
        found.append(workspace.trained())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("encode_prompts@evaluation", marks=pytest.mark.slow),
        pytest.param("profile_l1", marks=pytest.mark.slow),
        pytest.param("generate", marks=pytest.mark.slow),
        "score",
    ],
)
def test_two_processes_write_the_bytes_of_one(
    stage: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: content for name, content in workspace.files().items() if not name.startswith("runs/")}
    monkeypatch.setenv(PROCESSES, "2")
    workspace.finish(stage)
    assert {name: c for name, c in workspace.files().items() if not name.startswith("runs/")} == before
