"""infra/gaps.py: timers and leases after sleep, a jump of the clock and a restart of the server."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from infra import gaps
from infra.automations import LOST_AFTER_SECONDS

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """Seconds since 1970, as a test sets them."""

    def __init__(self) -> None:
        self.now = START.timestamp()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the server; it began to run at START."""
    made = Clock()
    monkeypatch.setattr(gaps, "GAPS", gaps.Gaps(made))
    monkeypatch.setattr(gaps.time, "time", made)
    return made


def passes(clock: Clock, seconds: float, *, asleep: bool = False) -> None:
    """Let time pass; the server looks at the clock every 5 s unless it is asleep."""
    for _ in range(1 if asleep else round(seconds / 5)):
        clock.now += seconds if asleep else 5
        gaps.GAPS.end()


def test_a_gap_is_a_long_time_between_two_looks(clock: Clock) -> None:
    start = clock.now
    for now, end in ((5, 0), (34, 0), (65, 65), (70, 65), (-900, 65), (-895, 65)):
        clock.now = start + now
        assert gaps.GAPS.end() == start + end, now


@dataclass
class Bucket:
    """The timer of a trigger, as Prefect stores it."""

    start: datetime
    end: datetime
    bucketing_key: tuple[str, ...] = ("prefect.flow-run.1",)
    last_event: Any = None


@pytest.fixture
def swept() -> list[datetime]:
    """Times before which Prefect deletes timers."""
    return []


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, swept: list[datetime]) -> list[Bucket]:
    """Timers on which Prefect's own function judges; what it would store is stored nowhere."""
    found: list[Bucket] = []

    async def evaluate(session: Any, trigger: Any, bucket: Bucket, now: Any, triggering_event: Any) -> Bucket:
        found.append(bucket)
        return bucket

    async def start_new_bucket(session: Any, trigger: Any, *, count: int, **values: Any) -> Bucket:
        assert count == 0
        return Bucket(**values)

    async def remove_bucket(session: Any, bucket: Bucket) -> None:
        return None

    async def sweep_closed_buckets(session: Any, older_than: datetime) -> None:
        swept.append(older_than)

    for stand_in in (evaluate, start_new_bucket, remove_bucket, sweep_closed_buckets):
        monkeypatch.setattr(gaps.triggers, stand_in.__name__, stand_in)
    monkeypatch.setattr(gaps.memory, "PRECEDING_EVENT_LOOKBACK", timedelta(minutes=15))
    gaps.forgive()
    return found


def evaluated(clock: Clock, bucket: Bucket, event: str | None = None) -> Bucket | None:
    """What becomes of a timer now, without an event or at one."""
    now = datetime.fromtimestamp(clock.now, UTC)
    found = None if event is None else SimpleNamespace(event=event)
    result: Bucket | None = asyncio.run(gaps.triggers.evaluate(None, _trigger(), bucket, now, found))
    return result


def _trigger() -> SimpleNamespace:
    return SimpleNamespace(
        posture=gaps.Posture.Proactive,
        within=timedelta(seconds=LOST_AFTER_SECONDS),
        starts_after=lambda event: event in {"prefect.flow-run.heartbeat", "prefect.flow-run.Running"},
    )


def opened(clock: Clock) -> Bucket:
    start = datetime.fromtimestamp(clock.now, UTC)
    return Bucket(start, start + timedelta(seconds=LOST_AFTER_SECONDS))


def test_a_run_is_lost_if_the_server_ran_while_it_was_silent(clock: Clock, judged: list[Bucket]) -> None:
    passes(clock, 60)
    bucket = opened(clock)
    passes(clock, 125)
    evaluated(clock, bucket)
    assert judged == [bucket]


@pytest.mark.parametrize("event", [None, "prefect.flow-run.heartbeat"])
def test_the_timer_starts_again_after_sleep(clock: Clock, judged: list[Bucket], event: str | None) -> None:
    passes(clock, 60)
    bucket = opened(clock)
    passes(clock, 20)
    passes(clock, 3600, asleep=True)
    again = evaluated(clock, bucket, event)
    assert again is not None
    assert (again.start, again.end) == (opened(clock).start, opened(clock).end)
    assert not judged
    passes(clock, 125)
    evaluated(clock, again)
    assert judged == [again]


def test_a_late_event_that_was_waited_for_ends_the_timer(clock: Clock, judged: list[Bucket]) -> None:
    passes(clock, 60)
    bucket = opened(clock)
    passes(clock, 3600, asleep=True)
    assert evaluated(clock, bucket, "prefect.flow-run.Completed") is None
    assert not judged


def test_a_timer_of_the_time_before_a_restart_starts_again(clock: Clock, judged: list[Bucket]) -> None:
    bucket = Bucket(START - timedelta(seconds=200), START - timedelta(seconds=80))
    passes(clock, 5)
    assert evaluated(clock, bucket) == opened(clock)
    assert not judged


@pytest.mark.usefixtures("judged")
def test_timers_are_deleted_only_after_they_were_judged(clock: Clock, swept: list[datetime]) -> None:
    for seconds, times in ((55, 0), (10, 1)):
        passes(clock, seconds)
        asyncio.run(gaps.triggers.sweep_closed_buckets(None, START))
        assert len(swept) == times


def test_prefect_calls_patched_functions() -> None:
    """A version of Prefect that does not would judge without patience."""
    for function in (gaps.triggers.reactive_evaluation, gaps.triggers.proactive_evaluation):
        assert "evaluate" in function.__code__.co_names
    assert "sweep_closed_buckets" in gaps.triggers.periodic_evaluation.__code__.co_names
    ordering = gaps.memory.CausalOrdering
    for function in (ordering.wait_for_leader, ordering.get_lost_followers):
        assert "PRECEDING_EVENT_LOOKBACK" in function.__code__.co_names


def test_no_lease_expires_soon_after_a_gap(clock: Clock, tmp_path: Path) -> None:
    async def expired() -> int:
        return len(await gaps.ConcurrencyLeaseStorage(tmp_path).read_expired_lease_ids())

    async def lease() -> None:
        await gaps.ConcurrencyLeaseStorage(tmp_path).create_lease([uuid4()], timedelta(seconds=-1))

    passes(clock, 3600, asleep=True)
    asyncio.run(lease())
    passes(clock, 295)
    assert asyncio.run(expired()) == 0
    passes(clock, 10)
    assert asyncio.run(expired()) == 1
