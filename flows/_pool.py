"""Run one stage as a flow run on another work pool, and follow it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import LogSort
from prefect.deployments import run_deployment
from prefect.states import Cancelling

from flows._dvc import StageOutcome
from flows._process import Log

_POLL_SECONDS = 1.0
_PAGE = 200  # the most log lines that Prefect's server hands out at once


def run_on_pool(name: str, pool: str, workspace: Path, log: Log, *, force: bool) -> StageOutcome:
    """Run deployment `stage/POOL` and wait for it without a limit: training may take days.

    Cancelling this run cancels that one at once; Prefect's server would do it too, half a minute later.

    Args:
        name: the stage.
        pool: work pool, also the name of the deployment.
        workspace: root of the DVC repository, on a disk that the pool's workers see.
        log: receives the other run's log lines while it runs.
        force: run it even when DVC knows the result.

    Raises:
        RuntimeError: the flow run ended otherwise than completed; with the message of its state.
    """
    parameters = {"name": name, "workspace": str(workspace), "force": force}
    run = cast(
        "FlowRun", run_deployment(f"stage/{pool}", parameters=parameters, flow_run_name=name, timeout=0)
    )
    with get_client(sync_client=True) as client:
        try:
            lines = 0
            while run.state is None or not run.state.is_final():
                time.sleep(_POLL_SECONDS)
                run = client.read_flow_run(run.id)
                lines += _forward_logs(client, run, log, lines)
        except BaseException:
            client.set_flow_run_state(run.id, Cancelling())
            raise
    if not run.state.is_completed():
        raise RuntimeError(f"stage {name} on work pool {pool}: {run.state.name}: {run.state.message}")
    return StageOutcome.parse(name, run.state.message or "")


def _forward_logs(client: SyncPrefectClient, run: FlowRun, log: Log, offset: int) -> int:
    """Hand on the log lines after the first `offset` ones; return how many."""
    mine = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id]))
    logs = client.read_logs(mine, limit=_PAGE, offset=offset, sort=LogSort.TIMESTAMP_ASC)
    for entry in logs:
        log(entry.message)
    return len(logs)
