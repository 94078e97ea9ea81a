"""Set-up on real servers, SQLite and PostgreSQL: twice, with changes of a user's, and workers of another folder."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from infra.local_prefect import DATABASE, LocalPrefect, free_port
from tests.waiting import wait_for

from .conftest import ask, set_up, snapshot, start_run, state, watched

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_set_up_twice_changes_nothing_and_a_small_run_completes(
    database: str,
    tmp_path: Path,
    make_pipeline: Callable[[Path], Path],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, password = {}, "not in use"
    if database == "postgresql":
        server[DATABASE], password = request.getfixturevalue("postgres")
    root = make_pipeline(tmp_path / "root")
    prefect = LocalPrefect(root=root, home=tmp_path / "home", port=free_port(), gpu_workers=2, server=server)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with prefect.running():
        assert (tmp_path / "home/prefect.db").exists() == (database == "sqlite")
        before = snapshot(prefect)
        assert before["work_pools"]["gpu"]["concurrency_limit"] == 2
        set_up(prefect)
        assert snapshot(prefect) == before
        run = start_run(prefect, preset="smoke")
        wait_for(lambda: state(prefect, run)[0] in ("COMPLETED", "FAILED", "CRASHED"), 120, "run ended")
        assert state(prefect, run) == ("COMPLETED", 1)
        for process in psutil.Process().children(recursive=True):
            if process != prefect.process("server"):
                assert password not in " ".join(process.environ().values()), process.cmdline()
    logs = list((tmp_path / "home").rglob("*.log"))
    assert logs
    assert not [path for path in logs if password in path.read_text()]


@pytest.fixture
def unchanged(served: LocalPrefect) -> Iterator[dict[str, Any]]:
    """Objects of set-up, restored after the test."""
    before = snapshot(served)
    yield before
    for pool in ("cpu", "gpu"):
        limit, template = (before["work_pools"][pool][key] for key in ("concurrency_limit", "base_job_template"))
        changes = {"is_paused": False, "concurrency_limit": limit, "base_job_template": template}
        ask(served, f"work_pools/{pool}", "PATCH", **changes)
    for automation in snapshot(served)["automations"].values():
        ask(served, f"automations/{automation['id']}", "PATCH", enabled=True)
    set_up(served, "--reset-schedules")


def test_set_up_again_keeps_what_a_user_set(served: LocalPrefect, unchanged: dict[str, Any]) -> None:
    automation = unchanged["automations"]["chunk-grpo: run a lost run once more"]
    full = unchanged["deployments"]["full"]
    template = deepcopy(unchanged["work_pools"]["cpu"]["base_job_template"])
    template["variables"]["properties"]["env"]["default"] = {"ADDED": "by a user"}
    ask(served, "work_pools/cpu", "PATCH", is_paused=True, concurrency_limit=5, base_job_template=template)
    ask(served, "work_pools/gpu", "PATCH", is_paused=True, concurrency_limit=7)
    ask(served, f"automations/{automation['id']}", "PATCH", enabled=False)
    three = {"concurrency_limit": 3, "concurrency_options": {"collision_strategy": "CANCEL_NEW"}}
    ask(served, f"deployments/{full['id']}", "PATCH", paused=True, parameters={"preset": "smoke"}, **three)
    ablations = unchanged["deployments"]["ablations"]
    ask(served, f"deployments/{ablations['id']}", "PATCH", concurrency_limit=None)
    nightly = unchanged["deployments"]["reevaluate"]
    (cron,) = nightly["schedules"]
    ask(served, f"deployments/{nightly['id']}/schedules/{cron['id']}", "DELETE")
    schedule = {"schedule": {"cron": "17 3 * * *", "timezone": "UTC"}, "active": False}
    httpx.post(f"{served.url}/api/deployments/{full['id']}/schedules", json=[schedule]).raise_for_status()
    as_set = snapshot(served)
    assert as_set["deployments"]["full"]["paused"]
    assert as_set["deployments"]["full"]["global_concurrency_limit"]["limit"] == 3
    assert as_set["deployments"]["ablations"]["global_concurrency_limit"] is None
    assert as_set["deployments"]["reevaluate"]["schedules"] == []
    set_up(served)
    assert snapshot(served) == as_set
    set_up(served, "--reset-schedules")
    again = snapshot(served)["deployments"]
    assert again["full"]["parameters"] == {}
    assert [again[name]["global_concurrency_limit"]["limit"] for name in ("full", "ablations")] == [1, 1]
    assert [each["schedule"]["cron"] for each in again["reevaluate"]["schedules"]] == ["0 3 * * *"]


def test_set_up_again_changes_what_was_asked_for(served: LocalPrefect, unchanged: dict[str, Any]) -> None:
    set_up(served, "--gpu-workers", "4", CHUNK_GRPO_NOTIFY_WEBHOOK="http://127.0.0.1:9/first")
    told = snapshot(served)
    assert told["work_pools"]["gpu"]["concurrency_limit"] == 4
    assert len(told["automations"]) == len(unchanged["automations"]) + 3
    set_up(served, CHUNK_GRPO_NOTIFY_WEBHOOK="http://127.0.0.1:9/second")
    assert snapshot(served) == told
    (block,) = ask(served, "block_documents/filter", include_secrets=True)
    assert block["data"]["url"] == "http://127.0.0.1:9/second"


def test_an_automation_that_someone_changed_is_mended(served: LocalPrefect) -> None:
    wanted = snapshot(served)["automations"]["chunk-grpo: end lost runs"]
    mine = next(a for a in ask(served, "automations/filter") if a["name"] == "chunk-grpo: end lost runs")
    body = {key: mine[key] for key in ("name", "description", "enabled", "actions")}
    changed = body | {"trigger": mine["trigger"] | {"within": 999}}
    ask(served, f"automations/{mine['id']}", "PUT", **changed)
    set_up(served)
    (found,) = [a for a in ask(served, "automations/filter") if a["name"] == "chunk-grpo: end lost runs"]
    assert found["trigger"]["within"] == wanted["trigger"]["within"]


def test_workers_of_another_clone_load_the_flows_from_there(
    tmp_path: Path, served: LocalPrefect, make_pipeline: Callable[[Path], Path]
) -> None:
    """The folder in which the deployments were made is not where these workers look."""
    other = make_pipeline(tmp_path / "elsewhere/clone")
    for pool in ("cpu", "gpu"):
        served.process(f"worker-{pool}").suspend()
    environment = {
        key: value for key, value in served.environment.items() if not key.startswith(("CHUNK_GRPO", "PREFECT"))
    } | {"PREFECT_API_URL": f"{served.url}/api"}
    try:
        with ExitStack() as workers:
            for pool in ("cpu", "gpu"):
                workers.enter_context(watched(served).worker(pool, other, environment))
            run = start_run(served, preset="smoke")
            wait_for(lambda: state(served, run)[0] in ("COMPLETED", "FAILED", "CRASHED"), 120, "run ended")
            assert state(served, run) == ("COMPLETED", 1)
            made = list(other.glob(".prefect/runs/*/models/b.txt"))
            assert len(made) == 2, made  # in the clone of its training, and in the run's
            assert not (served.home / "runs").exists()
    finally:
        for pool in ("cpu", "gpu"):
            served.process(f"worker-{pool}").resume()


def told(served: LocalPrefect, module: str, *options: str, **environment: str) -> str:
    """What a program of infra says that cannot work with this server."""
    command = [sys.executable, "-m", f"infra.{module}", *options]
    environment = served.environment | environment
    result = subprocess.run(command, cwd=served.root, env=environment, capture_output=True, text=True)
    assert result.returncode == 2
    assert "Traceback" not in result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.mark.parametrize(
    ("url", "message"),
    [("{}", "it ends with /api"), ("{}/api/api", "refused"), ("http://127.0.0.1:1/api", "make serve")],
)
def test_wrong_server_address_is_reported(served: LocalPrefect, url: str, message: str) -> None:
    address = url.format(served.url)
    for command in (["setup"], ["worker", "--pool", "gpu"]):
        said = told(served, *command, PREFECT_API_URL=address)
        assert address in said and message in said


def test_unknown_pool_error_names_setup_command(served: LocalPrefect) -> None:
    said = told(served, "worker", "--pool", "tpu")
    assert "no work pool 'tpu': run `chunk-grpo setup`" in said


def test_what_is_published_can_be_read(served: LocalPrefect) -> None:
    page = served.home / "published/smoke/report/index.html"
    page.parent.mkdir(parents=True)
    page.write_text("a report")
    assert httpx.get(f"{served.reports_url}/smoke/report/index.html").text == "a report"
    assert served.environment["CHUNK_GRPO_REPORTS_URL"] == served.reports_url
