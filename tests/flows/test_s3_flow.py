"""Flow runs of machines that share a bucket and a Prefect server at most: each has its own checkout, cache and home."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from chunk_grpo.artifacts.run_record import RECORD, read_record
from infra import worker
from tests.drills.watch import Run, Watch
from tests.flows.faults import served
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


def gpu_worker(watch: Watch, root: Path) -> AbstractContextManager[None]:
    """A worker as `make worker` starts it on a machine that knows the server's address alone."""
    own = (worker.REPOSITORY, "PREFECT_HOME")
    environment = {name: value for name, value in watch.prefect.environment.items() if name not in own}
    return watch.worker("gpu", root, environment)


def ended(watch: Watch, **parameters: Any) -> Run:
    """A run of the preset `smoke` that has ended."""
    return watch.ended(watch.start(preset="smoke", **parameters), 300)


def test_a_second_machine_computes_nothing_and_what_is_published_can_be_read(
    first: Path, bucket: str, shell: Shell
) -> None:
    """It shares the bucket alone: it has its own Prefect server, an empty cache and no dvc.lock."""
    add_remote(first, f"{bucket}/dvc", shell)
    published = f"{bucket}/published"
    table = f"{published}/smoke/report/scores.parquet"
    with served(first, publish=published) as watch:
        assert ended(watch)["state"]["message"] == "4 stages: 4 ran"
    assert pq.read_table(table)["value"].to_pylist() == [0.25, 0.5]
    record = read_record(f"{published}/smoke/{RECORD}")
    assert record.complete and "report/scores.parquet" in record.files
    second = first.parent / "second"
    shell(first.parent, "git", "clone", "--quiet", str(first), str(second))
    with served(second, publish=published) as watch:
        run = ended(watch)
        assert run["state"]["message"] == "4 stages: 4 pulled"
        assert set(watch.outcomes(run["id"]).values()) == {"pulled"}
    assert not list(second.glob(".prefect/runs/*/*.pid"))
    again = read_record(f"{published}/smoke/{RECORD}")
    assert (again.files, again.complete) == (record.files, True)
    assert again.run.flow_run != record.run.flow_run
    assert pq.read_table(table).num_rows == 2


def test_a_gpu_worker_of_another_machine(first: Path, bucket: str, shell: Shell) -> None:
    """Without a remote both sides say what is missing; with one the worker gets its inputs and gives its result."""
    second = first.parent / "second"
    shell(first.parent, "git", "clone", "--quiet", str(first), str(second))
    with served(first, gpu_workers=0) as watch, gpu_worker(watch, second):
        run = ended(watch, until="train@a")
        assert run["state_type"] == "FAILED"
        missing = "the outputs of prepare are neither in this worker's DVC cache nor in a DVC remote"
        assert missing in run["state"]["message"]
        assert watch.outcomes(run["id"]) == {"prepare": "ran", "train@a": "**failed**"}

        # now it has the inputs
        shutil.copytree(first / ".dvc" / "cache", second / ".dvc" / "cache", dirs_exist_ok=True)
        run = ended(watch, until="train@a")
        assert run["state_type"] == "FAILED"
        assert "stage train@a ran on pool gpu, but its outputs did not arrive" in run["state"]["message"]
        assert list(second.glob(".prefect/runs/*/models/a.txt"))

        for machine in (first, second):
            shell(machine, "dvc", "remote", "add", "--local", "-d", "store", f"{bucket}/dvc")
        run = ended(watch, overrides={"report": {"title": "Made on the first machine"}})
        assert run["state_type"] == "COMPLETED", run["state"]["message"]
        assert set(watch.outcomes(run["id"]).values()) == {"ran"}
    assert not list(first.glob(".prefect/runs/*/*.pid"))
    (clone,) = (path.parents[1] for path in first.glob(".prefect/runs/*/artifacts/report"))
    assert (clone / "models" / "a.txt").read_text().startswith("Made on the first machine{")
    trained = {path.read_text() for path in second.glob(".prefect/runs/*/models/*.txt")}
    assert {(clone / "models" / f"{name}.txt").read_text() for name in "ab"} <= trained
