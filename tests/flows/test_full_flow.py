"""The flow through a real Prefect server and both process workers, on the small pipeline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from infra.local_prefect import LocalPrefect, free_port
from infra.setup import SetUpError
from infra.smoke import latest_artifact

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def prefect(
    tmp_path_factory: pytest.TempPathFactory, make_pipeline: Callable[[Path], Path]
) -> Iterator[LocalPrefect]:
    """The small pipeline, served."""
    root = make_pipeline(tmp_path_factory.mktemp("served") / "root")
    with LocalPrefect(root=root, home=root / ".prefect", port=free_port()).running() as served:
        yield served


def run(prefect: LocalPrefect, *options: str, **parameters: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prefect", "deployment", "run", "chunk-grpo/full", *options]
    command += ["--params", json.dumps(parameters)]
    return subprocess.run(
        command,
        cwd=prefect.root,
        env=prefect.environment | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


def training(seconds: float) -> dict[str, Any]:
    """Let variant a train for so long."""
    return {"variants": {"a": {"eta": seconds}}}


def post(prefect: LocalPrefect, path: str, **body: Any) -> Any:
    return httpx.post(f"{prefect.url}/api/{path}", json=body).raise_for_status().json()


def latest_flow_runs(prefect: LocalPrefect, count: int) -> list[dict[str, Any]]:
    begun = {"state": {"type": {"not_any_": ["SCHEDULED"]}}}
    runs = post(prefect, "flow_runs/filter", flow_runs=begun, sort="START_TIME_DESC", limit=count)
    return list(runs)


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.25)
    return value


def rows(table: str) -> dict[str, str]:
    """Outcome of each stage in the outcome table."""
    cells = [
        [cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    return {cell[1]: cell[3] for cell in cells[2:]}


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_serving_sets_up_pools_and_deployments_and_leaves_no_process(
    tmp_path: Path, make_pipeline: Callable[[Path], Path]
) -> None:
    """Also the guard on the web framework's version: Prefect's server does not work with every one."""
    root = make_pipeline(tmp_path / "root")
    earlier = set(psutil.Process().children(recursive=True))  # such as the tracker of shared memory
    with LocalPrefect(root=root, home=tmp_path / "home", port=free_port()).running() as served:
        pools = {pool["name"]: pool["concurrency_limit"] for pool in post(served, "work_pools/filter")}
        assert pools == {"cpu": None, "gpu": 1}
        flows = {flow["id"]: flow["name"] for flow in post(served, "flows/filter")}
        deployments = {f"{flows[d['flow_id']]}/{d['name']}": d for d in post(served, "deployments/filter")}
        stages = [f"{flow}/gpu" for flow in ("encode", "profile", "train", "generate", "score")]
        pools = {name: d["work_pool_name"] for name, d in deployments.items()}
        runs = [f"chunk-grpo/{name}" for name in ("full", "ablations", "reevaluate")]
        assert pools == {**dict.fromkeys(runs, "cpu"), **dict.fromkeys(stages, "gpu")}
        assert deployments["chunk-grpo/full"]["concurrency_options"]["collision_strategy"] == "ENQUEUE"
        nightly = {"id": {"any_": [deployments["chunk-grpo/reevaluate"]["id"]]}}
        wait_for(lambda: post(served, "flow_runs/filter", deployments=nightly), 60, "a run of the schedule")
        children = set(psutil.Process().children(recursive=True)) - earlier
        assert len([c for c in children if is_running(c.pid)]) >= 3
        with pytest.raises(SetUpError, match=f"port {served.port} is in use"):
            served.running().__enter__()
    assert not [child for child in children if is_running(child.pid)]


def test_the_command_line_finds_the_server_by_prefect_toml(tmp_path: Path) -> None:
    """In the repository's root, with nothing set, `prefect` talks to the server of `make serve`."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    shown = subprocess.run(
        [sys.executable, "-m", "prefect", "config", "view"],
        cwd=REPOSITORY,
        env=environment | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    ).stdout
    assert "PREFECT_API_URL='http://127.0.0.1:4200/api' (from prefect.toml)" in shown
    assert "PREFECT_SERVER_ANALYTICS_ENABLED='False' (from prefect.toml)" in shown


@pytest.mark.slow
def test_first_run_executes_every_stage_and_publishes_the_report(prefect: LocalPrefect) -> None:
    result = run(prefect, "--watch", preset="smoke")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 stages: 4 ran" in result.stdout
    table = latest_artifact(prefect, "outcomes-smoke")
    assert rows(table) == dict.fromkeys(["prepare", "train@a", "train@b", "report"], "ran")
    assert "Preset smoke" in table
    report = latest_artifact(prefect, "report-smoke")
    assert "![profile](data:image/png;base64,iVBOR" in report
    assert "![away](https://example.org/x.png)" in report


@pytest.mark.slow
def test_second_run_is_cached_and_says_what_is_not_committed(prefect: LocalPrefect) -> None:
    (prefect.root / "draft.txt").write_text("not committed")
    result = run(prefect, "--watch", preset="smoke")
    assert result.returncode == 0, result.stdout + result.stderr
    table = latest_artifact(prefect, "outcomes-smoke")
    assert set(rows(table).values()) == {"restored"}
    assert "?? draft.txt" in table
    (full,) = (run for run in latest_flow_runs(prefect, 3) if not run["name"].startswith("train@"))
    tasks = post(prefect, "task_runs/filter", task_runs={"flow_run_id": {"any_": [full["id"]]}})
    states = {task["name"]: task["state_name"] for task in tasks if "run_deployment" not in task["task_key"]}
    assert states.pop("restore") == "Completed"
    assert states == dict.fromkeys(["prepare", "train@a", "train@b", "report"], "Cached")


@pytest.mark.slow
def test_failing_stage_fails_the_run_with_its_exit_code_and_last_lines(prefect: LocalPrefect) -> None:
    result = run(prefect, "--watch", preset="smoke", overrides={"variants": {"b": {"kl_coef": 3.0}}})
    assert result.returncode == 1
    assert "stage train@b failed with exit code 3 (bad input)" in result.stdout
    assert "no training for b" in result.stdout
    table = latest_artifact(prefect, "outcomes-smoke")
    assert rows(table) == {
        "prepare": "restored",
        "train@a": "restored",
        "train@b": "**failed**",
        "report": "not reached",
    }


@pytest.mark.slow
def test_unknown_preset_fails_before_any_stage(prefect: LocalPrefect) -> None:
    result = run(prefect, "--watch", preset="tinny")
    assert result.returncode == 1
    assert "tinny" in result.stdout


@pytest.mark.slow
def test_until_stops_after_a_stage(prefect: LocalPrefect) -> None:
    result = run(prefect, "--watch", preset="smoke", until="prepare", force=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert rows(latest_artifact(prefect, "outcomes-smoke")) == {"prepare": "ran"}


@pytest.mark.slow
def test_cancelling_the_run_ends_training_on_the_other_pool(prefect: LocalPrefect) -> None:
    assert run(prefect, preset="smoke", until="train@a", overrides=training(600.0)).returncode == 0
    pid = wait_for_training(prefect, set())
    child, parent = latest_flow_runs(prefect, 2)
    assert child["name"] == "train@a"
    cancel = [sys.executable, "-m", "prefect", "flow-run", "cancel", parent["id"]]
    subprocess.run(cancel, cwd=prefect.root, env=prefect.environment, check=True, capture_output=True)
    start = time.monotonic()
    wait_for(lambda: not is_running(pid), 60, "training process gone")
    assert time.monotonic() - start < 60

    def ended() -> bool:
        return [run["state_type"] for run in latest_flow_runs(prefect, 2)] == ["CANCELLED", "CANCELLED"]

    wait_for(ended, 60, "both flow runs cancelled")


@pytest.mark.slow
def test_stopping_in_mid_run_ends_its_stage_and_frees_its_slots(prefect: LocalPrefect) -> None:
    """Must be the last test: it leaves no server."""
    seen = set(prefect.home.glob("runs/*/a.pid"))
    assert run(prefect, preset="smoke", until="train@a", overrides=training(601.0)).returncode == 0
    pid = wait_for_training(prefect, seen)
    prefect.stop()
    assert not is_running(pid)
    with LocalPrefect(root=prefect.root, home=prefect.home, port=free_port()).running() as again:
        ended = latest_flow_runs(again, 2)
        # Never Crashed: then the server would run it once more. From Cancelling there is no way to that state.
        for run_id in (run["id"] for run in ended):
            states = httpx.get(f"{again.url}/api/flow_run_states/", params={"flow_run_id": run_id}).json()
            assert [state["type"] for state in states][-2:] == ["CANCELLING", "CANCELLED"]
        result = run(again, "--watch", "--watch-timeout", "120", preset="smoke", until="train")
        assert result.returncode == 0, result.stdout + result.stderr
        found = post(again, "flow_runs/filter", flow_runs={"id": {"any_": [run["id"] for run in ended]}})
        assert [run["state_type"] for run in found] == ["CANCELLED", "CANCELLED"]


def wait_for_training(prefect: LocalPrefect, seen: set[Path]) -> int:
    """The process id that the training stage of a new run has written."""

    def written() -> str:
        files = set(prefect.home.glob("runs/*/a.pid")) - seen
        texts = [file.read_text() for file in files]
        running = [text for text in texts if text and is_running(int(text))]
        return running[0] if running else ""

    return int(wait_for(written, 90, "training started"))
