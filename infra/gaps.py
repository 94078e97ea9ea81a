"""Time in which the Prefect server did not run is no silence of its flow runs: sleep, a jump of the clock, a restart.

Prefect judges by the clock alone: when a laptop wakes, the heartbeats of all runs are overdue, and so are the leases of
their places in the limits of deployments. The server would end runs that are alive before they can report.

Prefect has a setting for the storage of leases, and none for the rest: `forgive` replaces two functions and one
constant of its package `events`. `tests/infra/test_gaps.py` shows that this version of Prefect uses them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from prefect.server.concurrency.lease_storage import filesystem
from prefect.server.events import triggers as prefect_triggers
from prefect.server.events.ordering import memory as prefect_memory
from prefect.server.events.schemas.automations import Posture

_LOOK_SECONDS = 5.0
_GAP_SECONDS = 30.0
"""Time between two looks at the clock that counts as a gap."""
_LEASE_SECONDS = 300.0
"""Time after a gap in which no lease expires; flow runs renew theirs after 225 s."""
_JUDGE_SECONDS = 60.0
"""Time after a gap in which no timer is deleted; Prefect judges all of them every 30 s."""
_ORDER_SECONDS = 30.0
"""Time for which an event waits for the one that it follows; Prefect's 15 minutes outlast the timers of automations.
The last event of a run before a restart of the server never arrives at the new process."""

triggers: Any = prefect_triggers
memory: Any = prefect_memory


class Gaps:
    """The last time, in seconds since 1970, at which the server began to run, or to run again after a gap."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = self._end = clock()

    def end(self) -> float:
        """Look at the clock, and return the end of the last gap. Call it every few seconds."""
        with self._lock:
            now = self._clock()
            if now - self._seen > _GAP_SECONDS:
                self._end = now
            self._seen = now
            return self._end

    def watch(self) -> None:
        """Look at the clock every few seconds, in a thread of its own."""

        def look() -> None:
            while True:
                self.end()
                time.sleep(_LOOK_SECONDS)

        threading.Thread(target=look, name="gaps", daemon=True).start()


GAPS = Gaps()
"""The gaps of this process."""


def forgive() -> None:
    """Make Prefect's server in this process start all timers again after a gap."""
    judge, sweep = triggers.evaluate, triggers.sweep_closed_buckets

    async def evaluate(session: Any, trigger: Any, bucket: Any, now: Any, triggering_event: Any) -> Any:
        """Judge a timer; start it again if it has ended and there was a gap in its time."""
        end = datetime.fromtimestamp(GAPS.end(), UTC)
        if trigger.posture != Posture.Proactive or bucket.end > now or bucket.start >= end:
            return await judge(session, trigger, bucket, now, triggering_event)
        if triggering_event is not None and not trigger.starts_after(triggering_event.event):
            return await triggers.remove_bucket(session, bucket)  # the event came, late
        return await triggers.start_new_bucket(
            session,
            trigger,
            bucketing_key=tuple(bucket.bucketing_key),
            start=now,
            end=now + trigger.within,
            count=0,
            last_event=triggering_event or bucket.last_event,
        )

    async def sweep_closed_buckets(session: Any, older_than: Any) -> None:
        """Delete timers that ended a minute ago; soon after a gap some are still to be judged."""
        if time.time() > GAPS.end() + _JUDGE_SECONDS:
            await sweep(session, older_than)

    triggers.evaluate, triggers.sweep_closed_buckets = evaluate, sweep_closed_buckets
    memory.PRECEDING_EVENT_LOOKBACK = timedelta(seconds=_ORDER_SECONDS)


class ConcurrencyLeaseStorage(filesystem.ConcurrencyLeaseStorage):
    """Leases that outlive a restart of the server; none expires soon after a gap.

    Prefect cancels a flow run of a deployment with a limit when its lease cannot be renewed.
    """

    async def read_expired_lease_ids(self, limit: int = 100) -> list[UUID]:
        """As in Prefect's class; none for some minutes after a gap."""
        if time.time() < GAPS.end() + _LEASE_SECONDS:
            return []
        return await super().read_expired_lease_ids(limit)
