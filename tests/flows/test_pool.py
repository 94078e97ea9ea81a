"""flows/_pool.py: how often a flow run asks about its stage on a pool, and when it says that the stage waits."""

from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Pending, Running, Scheduled, State

from flows._pool import pause_after, waits_for_worker


@pytest.mark.parametrize(
    ("elapsed", "pause"), [(0.0, 1.0), (20.0, 1.0), (50.0, 2.5), (100.0, 5.0), (9e4, 5.0)]
)
def test_a_long_stage_is_asked_about_less_often(elapsed: float, pause: float) -> None:
    assert pause_after(elapsed) == pause


@pytest.mark.parametrize(
    ("state", "elapsed", "waits"),
    [
        (Scheduled(), 31.0, True),
        (Scheduled(), 29.0, False),
        (Pending(), 31.0, False),
        (Running(), 31.0, False),
    ],
)
def test_a_stage_that_no_worker_takes_is_reported(state: State, elapsed: float, waits: bool) -> None:
    assert waits_for_worker(FlowRun(flow_id=uuid4(), state=state), elapsed) == waits
