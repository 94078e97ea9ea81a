"""Flow runs of machines that share a bucket and a Prefect server at most: each has its own checkout, cache and home."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from chunk_grpo.artifacts.run_record import RECORD, read_record
from infra import worker
from infra.local_prefect import LocalPrefect, free_port, stop_trees
from infra.smoke import latest_artifact
from tests.flows.test_full_flow import rows, run
from tests.flows.test_s3 import add_remote
from tests.small_pipeline import Shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TABLE = """
    import pyarrow
    from pyarrow import parquet
    parquet.write_table(pyarrow.table({"value": [0.25, 0.5]}), out / "scores.parquet")
"""


@pytest.fixture
def first(tmp_path: Path, make_pipeline: Callable[[Path], Path], shell: Shell) -> Path:
    """The checkout of the machine where runs begin; its last stage writes a table."""
    root = make_pipeline(tmp_path / "first")
    work = root / "stages" / "work.py"
    work.write_text(work.read_text() + TABLE)
    shell(root, "git", "commit", "--quiet", "--all", "--message", "a table")
    return root


@contextmanager
def served(root: Path, gpu_workers: int = 1, publish: str | None = None) -> Iterator[LocalPrefect]:
    home, port = root / ".prefect", free_port()
    server = LocalPrefect(root=root, home=home, port=port, gpu_workers=gpu_workers, publish=publish)
    with server.running():
        yield server


@contextmanager
def gpu_worker(server: LocalPrefect, root: Path) -> Iterator[None]:
    """A worker as `make worker` starts it on a machine that knows the server's address alone."""
    environment = server.environment
    for name in (worker.REPOSITORY, "PREFECT_HOME"):
        del environment[name]
    command = [sys.executable, "-m", "infra.worker", "--pool", "gpu", "--name", "far"]
    with (root.parent / "far.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            yield
        finally:
            stop_trees([psutil.Process(process.pid)])
            process.wait()


def outcomes(server: LocalPrefect) -> dict[str, str]:
    return rows(latest_artifact(server, "outcomes-smoke"))


def test_a_second_machine_computes_nothing_and_what_is_published_can_be_read(
    first: Path, bucket: str, shell: Shell
) -> None:
    """It shares the bucket alone: it has its own Prefect server, an empty cache and no dvc.lock."""
    add_remote(first, f"{bucket}/dvc", shell)
    table = f"{bucket}/published/smoke/report/scores.parquet"
    with served(first, publish=f"{bucket}/published") as server:
        result = run(server, "--watch", preset="smoke")
        assert "4 stages: 4 ran" in result.stdout, result.stdout + result.stderr
    assert pq.read_table(table)["value"].to_pylist() == [0.25, 0.5]
    record = read_record(f"{bucket}/published/smoke/{RECORD}")
    assert record.complete and "report/scores.parquet" in record.files
    second = first.parent / "second"
    shell(first.parent, "git", "clone", "--quiet", str(first), str(second))
    with served(second, publish=f"{bucket}/published") as server:
        result = run(server, "--watch", preset="smoke")
        assert "4 stages: 4 restored" in result.stdout, result.stdout + result.stderr
        assert set(outcomes(server).values()) == {"restored"}
    assert not list(second.glob(".prefect/runs/*/*.pid"))
    again = read_record(f"{bucket}/published/smoke/{RECORD}")
    assert (again.files, again.complete) == (record.files, True)
    assert again.run.flow_run != record.run.flow_run
    assert pq.read_table(table).num_rows == 2


def test_a_gpu_worker_of_another_machine(first: Path, bucket: str, shell: Shell) -> None:
    """Without a remote both sides say what is missing; with one the worker gets its inputs and gives its result."""
    second = first.parent / "second"
    shell(first.parent, "git", "clone", "--quiet", str(first), str(second))
    with served(first, gpu_workers=0) as server, gpu_worker(server, second):
        result = run(server, "--watch", preset="smoke", until="train@a")
        assert result.returncode == 1
        assert (
            "the outputs of prepare are neither in this worker's DVC cache nor in a DVC remote"
            in result.stdout
        )
        assert outcomes(server) == {"prepare": "ran", "train@a": "**failed**"}

        shutil.copytree(first / ".dvc" / "cache", second / ".dvc" / "cache")  # now it has the inputs
        result = run(server, "--watch", preset="smoke", until="train@a")
        assert result.returncode == 1
        assert "stage train@a ran on pool gpu, but its outputs did not arrive" in result.stdout
        assert list(second.glob(".prefect/runs/*/models/a.txt"))

        for machine in (first, second):
            shell(machine, "dvc", "remote", "add", "--local", "-d", "store", f"{bucket}/dvc")
        other = {"report": {"title": "Made on the first machine"}}
        result = run(server, "--watch", preset="smoke", overrides=other)
        assert result.returncode == 0, result.stdout + result.stderr
        assert set(outcomes(server).values()) == {"ran"}
    assert not list(first.glob(".prefect/runs/*/*.pid"))
    (clone,) = (path.parents[1] for path in first.glob(".prefect/runs/*/artifacts/report"))
    assert (clone / "models" / "a.txt").read_text().startswith("Made on the first machine{")
    trained = {path.read_text() for path in second.glob(".prefect/runs/*/models/*.txt")}
    assert {(clone / "models" / f"{name}.txt").read_text() for name in "ab"} <= trained
