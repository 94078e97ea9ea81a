"""Query a Prefect server for the flow runs of our deployments."""

from __future__ import annotations

from collections.abc import Sequence

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentTaskRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, StateType

TAG = "chunk-grpo"
_PAGE = 200  # the server's limit per request


def runs_in(client: SyncPrefectClient, states: Sequence[StateType], *, waited_for: bool = False) -> list[FlowRun]:
    """All flow runs of our deployments in the given states.

    `waited_for`: only those that another flow run started and waits for.
    """
    wanted = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states))),
        tags=FlowRunFilterTags(all_=[TAG]),
    )
    if waited_for:
        wanted.parent_task_run_id = FlowRunFilterParentTaskRunId(is_null_=False)
    found: dict[object, FlowRun] = {}  # a run that changes during paging may be on two pages
    offset = 0
    while page := client.read_flow_runs(flow_run_filter=wanted, limit=_PAGE, offset=offset):
        found.update({run.id: run for run in page})
        offset += len(page)
    return list(found.values())
