"""flows/_pool.py: how often a flow run asks about its stage on a pool, and which of its lines it repeats."""

from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, Log
from prefect.states import Pending, Running, Scheduled, State

from flows._pool import forward_logs, pause_after, waits_for_worker


@pytest.mark.parametrize(("elapsed", "pause"), [(0.0, 1.0), (20.0, 1.0), (50.0, 2.5), (100.0, 5.0), (9e4, 5.0)])
def test_a_long_stage_is_asked_about_less_often(elapsed: float, pause: float) -> None:
    assert pause_after(elapsed) == pause


@pytest.mark.parametrize(
    ("state", "elapsed", "waits"),
    [(Scheduled(), 31.0, True), (Scheduled(), 29.0, False), (Pending(), 31.0, False), (Running(), 31.0, False)],
)
def test_a_stage_that_no_worker_takes_is_reported(state: State, elapsed: float, waits: bool) -> None:
    assert waits_for_worker(FlowRun(flow_id=uuid4(), state=state), elapsed) == waits


def test_of_many_lines_the_newest_are_repeated_once() -> None:
    printed: list[Log] = []

    def read_logs(_: Any, limit: int, sort: str) -> list[Log]:
        assert (limit, sort) == (200, "TIMESTAMP_DESC")
        return printed[: -limit - 1 : -1]

    client, run = Mock(read_logs=read_logs), FlowRun(flow_id=uuid4(), name="train@chunk-0")
    said, seen = list[str](), set[UUID]()
    for count in (3, 2, 1000, 0, 1):
        for _ in range(count):
            line = f"line {len(printed)}"
            printed.append(Log(name="stage", level=20, message=line, timestamp="2026-01-01T00:00:00Z"))
        forward_logs(client, run, said.append, seen)
    left_out = "Lines are left out here; all are in the log of the flow run train@chunk-0."
    assert said == [
        *(f"line {number}" for number in range(5)),
        left_out,
        *(f"line {number}" for number in range(805, 1006)),
    ]
