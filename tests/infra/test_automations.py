"""Automations of a real server for flow runs that a worker took and that never run."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.events.schemas.automations import EventTrigger
from prefect.settings import PREFECT_API_URL, temporary_settings

from infra import local_prefect
from infra.local_prefect import LocalPrefect, _unfinished
from infra.setup import AUTOMATIONS, automations, set_up_automations
from tests.infra.deployment_files import template
from tests.waiting import wait_for

from .conftest import ask, set_up, state

pytestmark = pytest.mark.slow

NEVER = "2099-01-01T00:00:00Z"


@pytest.fixture
def impatient(served: LocalPrefect) -> Iterator[LocalPrefect]:
    """A server that takes runs for lost which do not run after some seconds."""
    with temporary_settings({PREFECT_API_URL: f"{served.url}/api"}), get_client(sync_client=True) as client:
        wanted = automations(AUTOMATIONS)
        for automation, seconds in zip(wanted[1:3], (10, 25), strict=True):  # the least that Prefect allows, and more
            assert isinstance(automation.trigger, EventTrigger)
            automation.trigger.within = timedelta(seconds=seconds)
        set_up_automations(client, wanted)
    yield served
    set_up(served)


def taken(prefect: LocalPrefect, deployment: str, *states: str) -> str:
    """A flow run that no worker looks at, after these states, as a worker proposes them one after the other."""
    found = ask(prefect, f"deployments/name/{deployment}", "GET")
    later = {"type": "SCHEDULED", "state_details": {"scheduled_time": NEVER}}
    run = ask(prefect, f"deployments/{found['id']}/create_flow_run", state=later)
    for name in states:
        pending = {"type": "PENDING", "name": name}
        ask(prefect, f"flow_runs/{run['id']}/set_state", state=pending, force=True)
    return str(run["id"])


@pytest.fixture
def container_pool(served: LocalPrefect) -> Iterator[str]:
    """A deployment on a pool of Kubernetes that has no worker."""
    full = ask(served, "deployments/name/chunk-grpo/full", "GET")
    pool = {"name": "containers", "type": "kubernetes", "base_job_template": template("kubernetes", "cpu")}
    ask(served, "work_pools/", **pool)
    same = {key: full[key] for key in ("flow_id", "tags")}
    ask(served, "deployments/", name="far", work_pool_name="containers", **same)
    yield "chunk-grpo/far"
    ask(served, "work_pools/containers", "DELETE")


WAYS = (["Pending"], ["Pending", "Submitting"], ["Pending", "Submitting", "InfrastructurePending"])


def test_run_that_never_starts_is_marked_crashed(impatient: LocalPrefect, container_pool: str) -> None:
    told = {
        "chunk-grpo/full": "Its worker was lost: not running",
        container_pool: "No image, no machine, or its worker was lost: not running",
    }
    runs = [(taken(impatient, name, *states), said) for name, said in told.items() for states in WAYS]
    for run, said in runs:
        wait_for(lambda run=run: state(impatient, run) == ("CRASHED", 0), 60, "crashed")
        assert ask(impatient, f"flow_runs/{run}", "GET")["state"]["message"].startswith(said)


def test_runs_are_found_on_all_pages(served: LocalPrefect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without those that only wait for their time, unless another run waits for them."""
    full = ask(served, "deployments/name/chunk-grpo/full", "GET")
    pending = {"type": "PENDING", "name": "Pending"}
    later = {"type": "SCHEDULED", "state_details": {"scheduled_time": NEVER}}
    parent = ask(served, "flow_runs/", flow_id=full["flow_id"], state={"type": "RUNNING"}, tags=full["tags"])
    key = {"task_key": "train", "dynamic_key": "0", "state": {"type": "RUNNING"}}
    task = ask(served, "task_runs/", flow_run_id=parent["id"], **key)

    def made(**body: Any) -> str:
        return str(ask(served, "flow_runs/", flow_id=full["flow_id"], tags=full["tags"], **body)["id"])

    wanted = {parent["id"], *(made(state=pending) for _ in range(7))}
    wanted.add(made(state=later, parent_task_run_id=task["id"]))
    others = [made(state=later) for _ in range(7)]
    monkeypatch.setattr(local_prefect, "_PAGE", 3)
    with temporary_settings({PREFECT_API_URL: f"{served.url}/api"}), get_client(sync_client=True) as client:
        assert wanted <= {str(run.id) for run in _unfinished(client)}
        assert not {str(run.id) for run in _unfinished(client)} & set(others)
    for run in (*wanted, *others):
        ask(served, f"flow_runs/{run}", "DELETE")
