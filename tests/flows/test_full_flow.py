"""The flow through a real Prefect server and both process workers, on the small pipeline."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from infra.local_prefect import LocalPrefect, free_port
from infra.setup import SetUpError
from tests.drills.watch import Watch, lives
from tests.flows.faults import child_of, served, training
from tests.forked_dvc import forked_dvc

REPOSITORY = Path(__file__).resolve().parents[2]
STAGES = ["prepare", "train@a", "train@b", "report"]


def post(prefect: LocalPrefect, path: str, **body: Any) -> Any:
    return httpx.post(f"{prefect.url}/api/{path}", json=body).raise_for_status().json()


@pytest.mark.slow  # .ci/run serves too, and runs a flow
def test_serving_sets_up_pools_and_deployments_and_leaves_no_process(
    tmp_path: Path, make_pipeline: Callable[[Path], Path]
) -> None:
    """Also the guard on the web framework's version: Prefect's server does not work with every one."""
    root = make_pipeline(tmp_path / "root")
    earlier = set(psutil.Process().children(recursive=True))  # such as the tracker of shared memory
    with LocalPrefect(root=root, home=tmp_path / "home", port=free_port()).running() as prefect:
        pools = {pool["name"]: pool["concurrency_limit"] for pool in post(prefect, "work_pools/filter")}
        assert pools == {"cpu": None, "gpu": 1}
        flows = {flow["id"]: flow["name"] for flow in post(prefect, "flows/filter")}
        deployments = {f"{flows[d['flow_id']]}/{d['name']}": d for d in post(prefect, "deployments/filter")}
        stages = [f"{flow}/{flow}-gpu" for flow in ("encode", "profile", "train", "generate", "score")]
        pools = {name: d["work_pool_name"] for name, d in deployments.items()}
        runs = [f"chunk-grpo/{name}" for name in ("full", "ablations", "reevaluate")]
        assert pools == {**dict.fromkeys(runs, "cpu"), **dict.fromkeys(stages, "gpu")}
        assert deployments["chunk-grpo/full"]["concurrency_options"]["collision_strategy"] == "ENQUEUE"
        (nightly,) = deployments["chunk-grpo/reevaluate"]["schedules"]
        assert (nightly["active"], nightly["schedule"]["cron"]) == (True, "0 3 * * *")
        children = set(psutil.Process().children(recursive=True)) - earlier
        assert len([child for child in children if lives(child)]) >= 3
        with pytest.raises(SetUpError, match=f"already runs here, on port {prefect.port}"):
            prefect.running().__enter__()
    assert not [child for child in children if lives(child)]


def test_the_command_line_finds_the_server_by_prefect_toml(tmp_path: Path) -> None:
    """In the repository's root, `prefect` uses the server of `make serve` without settings."""
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
    assert "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED='['events', 'flow_runs']' (from prefect.toml)" in shown
    assert "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD='15552000' (from prefect.toml)" in shown


@pytest.mark.slow
def test_a_run_executes_every_stage_and_the_next_one_takes_all_from_the_cache(watch: Watch) -> None:
    """It publishes the report, and says what is not committed."""
    code, told = watch.command(preset="smoke")
    (first,) = (run["id"] for run in post(watch.prefect, "flow_runs/filter") if run["name"].startswith("smoke "))
    assert (code, "4 stages: 4 ran" in told) == (0, True), told
    assert f"Report: {watch.prefect.reports_url}/smoke/report/index.html" in told.replace("\n", "")
    table = watch.latest_artifact("outcomes-smoke")
    assert [f"| {stage} | {'gpu' if '@' in stage else ''} | ran |" in table for stage in STAGES] == [True] * 4
    assert "Preset smoke" in table
    report = watch.latest_artifact("report-smoke")
    assert "![profile](data:image/png;base64,iVBOR" in report
    assert "![away](https://example.org/x.png)" in report

    (watch.prefect.root / "draft.txt").write_text("not committed")
    second = watch.start(preset="smoke")
    assert watch.ended(second, 120)["state_type"] == "COMPLETED"
    assert watch.outcomes(second) == dict.fromkeys(STAGES, "restored")
    assert "?? draft.txt" in watch.latest_artifact("outcomes-smoke")
    states = {task["name"]: task["state_name"] for task in watch.tasks(second)}
    assert states == {"restore": "Completed", **dict.fromkeys(STAGES, "Cached"), "publish": "Completed"}
    names = [str(watch.run(each)["name"]) for each in (first, second)]
    assert all(re.fullmatch(r"smoke [0-9a-f]{4}", name) for name in names)
    listed = forked_dvc(watch.prefect.root, "exp", "list", "--name-only").split()
    assert sorted(listed) == sorted(name.replace(" ", "-") for name in names)


@pytest.mark.slow
def test_uncommitted_edits_run_where_they_are_asked_for(watch: Watch) -> None:
    (watch.prefect.root / "new.txt").write_text("not committed")
    run = watch.start(preset="smoke", until="prepare", commit="working-tree")
    assert watch.ended(run, 120)["state_type"] == "COMPLETED"
    page = watch.latest_artifact("outcomes-smoke")
    assert ", uncommitted edits, in `" in page
    assert "Not part of this run" not in page
    of_run = {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC"}
    found = watch.ask("POST", "logs/filter", of_run)
    ours = [line["message"] for line in found if line["message"].startswith(("This run is of", "Commit "))]
    assert ours[0].startswith("This run is of uncommitted edits, on this machine alone, and is not published: ")
    assert "?? new.txt" in ours[0]


@pytest.mark.slow
def test_until_stops_after_a_stage_and_force_runs_it_again(watch: Watch) -> None:
    title = {"report": {"title": "until prepare"}}
    for force, outcome in ((False, "ran"), (False, "restored"), (True, "ran")):
        run = watch.start(preset="smoke", until="prepare", overrides=title, force=force)
        assert watch.ended(run, 120)["state_type"] == "COMPLETED"
        assert watch.outcomes(run) == {"prepare": outcome}


@pytest.mark.slow
def test_stopping_in_mid_run_ends_its_stage_and_frees_its_slots(
    tmp_path: Path, make_pipeline: Callable[[Path], Path]
) -> None:
    root = tmp_path / "root"
    with served(root, make_pipeline) as watch:
        run = watch.start(preset="smoke", until="train@a", overrides=training(600.0))
        child = child_of(watch, run)
        stage = watch.stage(child, "train models/a.txt")
        assert stage is not None
        watch.prefect.stop()
        assert not lives(stage)
    with served(root) as again:
        # Never Crashed: then the server would run it once more. From Cancelling there is no way to that state.
        for each in (run, child):
            assert again.states(each)[-2:] == ["CANCELLING", "CANCELLED"]
        after = again.start(preset="smoke", until="train")
        assert again.ended(after, 120)["state_type"] == "COMPLETED"
        for each in (run, child):
            assert again.run(each)["state_type"] == "CANCELLED"
