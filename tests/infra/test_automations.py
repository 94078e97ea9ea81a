"""What a real server does with flow runs that a worker took and that never run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from infra import automations
from infra.local_prefect import LocalPrefect

from .conftest import ask, set_up, state, wait_for

pytestmark = pytest.mark.slow

NEVER = "2099-01-01T00:00:00Z"


@pytest.fixture
def impatient(served: LocalPrefect) -> Iterator[LocalPrefect]:
    """A server that takes runs for lost which do not run after some seconds."""
    with temporary_settings({PREFECT_API_URL: f"{served.url}/api"}), get_client(sync_client=True) as client:
        # The least that Prefect allows.
        automations.apply(client, automations.supervision(started_within_seconds=10))
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


WAYS = (["Pending"], ["Pending", "Submitting"], ["Pending", "Submitting", "InfrastructurePending"])


def test_a_run_that_never_starts_crashes_however_far_its_worker_came(impatient: LocalPrefect) -> None:
    runs = {" ".join(states): taken(impatient, "chunk-grpo/full", *states) for states in WAYS}
    for states, run in runs.items():
        wait_for(lambda run=run: state(impatient, run) == ("CRASHED", 0), 60, f"{states}: crashed")
        message = ask(impatient, f"flow_runs/{run}", "GET")["state"]["message"]
        assert message == "Its worker was lost: not running 10 s after it was taken."
