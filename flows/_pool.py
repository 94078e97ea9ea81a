"""Run one stage as a flow run on another work pool, follow it, and fetch its outputs."""

from __future__ import annotations

import json
import time
from typing import Any, cast
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.sorting import LogSort
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Cancelling

from chunk_grpo.orchestration.attempts import attempts_allowed
from chunk_grpo.orchestration.commands import CommandStoppedError, Log
from chunk_grpo.orchestration.outcomes import StageOutcome
from chunk_grpo.orchestration.pipeline import StageSpec
from chunk_grpo.orchestration.workspace import Workspace
from flows._names import stage_name

_ATTEMPTS = 2  # default: one retry if the worker or its machine was lost; a failed stage is not retried
_POLL_SECONDS = 1.0
_SLOW_POLL_SECONDS = 5.0
_WAIT_SECONDS = 30.0
_OUTPUTS = "stage-outputs"
_PAGE = 200  # the server's limit of log lines per request


def run_on_pool(
    spec: StageSpec, workspace: Workspace, log: Log, *, force: bool
) -> tuple[StageOutcome, list[dict[str, Any]]]:
    """Run deployment FLOW/FLOW-POOL of a stage and wait for it without a timeout: training may take days.

    The other run makes its own workspace from the same specification; `log` receives its lines while it runs. Returns
    the outcome, and the stage's outputs as listed in the other workspace's dvc.lock. RuntimeError if the deployment
    does not exist, or its run did not complete.
    """
    deployment = f"{spec.flow}/{spec.flow}-{spec.work_pool}"
    parameters = {"name": spec.name, "spec": workspace.spec.as_parameter(), "force": force}
    # A retried run finds the flow runs that it started before, unless the specification (commit) has changed.
    prefix = f"{flow_run.id}/{workspace.spec.digest()}/{spec.name}"
    attempts, number, allowed = 0, 0, attempts_allowed(_ATTEMPTS)
    while attempts < allowed:
        number += 1
        key = f"{prefix}/{number}"
        try:
            started = run_deployment(
                deployment,
                flow_run_name=stage_name(spec.name, workspace),
                parameters=parameters,
                timeout=0,
                idempotency_key=key,
            )
        except ObjectNotFound as error:
            raise RuntimeError(
                f"stage {spec.name}: the server has no deployment {deployment}; run `chunk-grpo setup "
                f"--pools {spec.work_pool}`"
            ) from error
        run = cast("FlowRun", started)
        found = run.state
        state = _followed(run, workspace, log)
        if state.is_completed():
            return StageOutcome.parse(spec.name, state.message or ""), _outputs(run)
        if found is not None and (found.is_final() or found.is_cancelling()):
            continue  # found already ended from an earlier attempt of this run: does not count
        attempts += 1
        if not state.is_crashed():
            break
        if attempts < allowed:
            get_run_logger().warning(
                f"{run.name} was lost: {state.message} It is started again: attempt {attempts + 1} of {allowed}."
            )
    raise RuntimeError(f"stage {spec.name} by {deployment}: {state.name}: {state.message}")


def report_outputs(workspace: Workspace, stage: str) -> None:
    """Publish the list of a stage's outputs as an artifact of its flow run; the waiting run reads it."""
    table = workspace.pipeline.outputs(stage)
    create_table_artifact(table, key=_OUTPUTS, description=f"Outputs of {stage}, as listed in dvc.lock")


def _outputs(run: FlowRun) -> list[dict[str, Any]]:
    key = filters.ArtifactFilterKey(any_=[_OUTPUTS])
    of_run = filters.ArtifactFilterFlowRunId(any_=[run.id])
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=filters.ArtifactFilter(key=key, flow_run_id=of_run))
    newest = max(found, key=lambda artifact: str(artifact.created))  # one artifact per attempt
    return cast("list[dict[str, Any]]", json.loads(str(newest.data)))


def _followed(run: FlowRun, workspace: Workspace, log: Log) -> State[Any]:
    """Follow a flow run to its end; return its final state.

    Cancelling this run cancels the other one at once; Prefect's server would take half a minute. Server errors are
    logged and retried without limit, because the other run continues without the server.
    """
    stopping, seen, start = workspace.commands.stopping, set[UUID](), time.monotonic()
    waits = False
    with get_client(sync_client=True) as client:
        while run.state is None or not run.state.is_final():
            if stopping.wait(pause_after(time.monotonic() - start)):
                client.set_flow_run_state(run.id, Cancelling())
                raise CommandStoppedError("stopped with all others")
            try:
                found = client.read_flow_run(run.id)
                if found.state is not None and found.state.is_final():
                    stopping.wait(_POLL_SECONDS)  # the last log lines may arrive after the final state
                if not waits and waits_for_worker(found, time.monotonic() - start):
                    waits = True
                    paused = client.read_work_pool(str(found.work_pool_name)).is_paused
                    what = "pool {}, which is paused" if paused else "a free worker of pool {}"
                    log(f"{run.name} waits for {what.format(found.work_pool_name)}.")
                forward_logs(client, run, log, seen)
                run = found
            except httpx.HTTPError as error:
                log(f"Flow run {run.name} cannot be followed at the moment: {error}")
    return run.state


def waits_for_worker(run: FlowRun, elapsed: float) -> bool:
    """Whether no worker has taken a flow run within half a minute."""
    return run.state is not None and run.state.is_scheduled() and elapsed > _WAIT_SECONDS


def pause_after(elapsed: float) -> float:
    """Seconds between two polls of a stage; polling every second costs 2 % of a core per running stage."""
    return min(max(_POLL_SECONDS, elapsed / 20), _SLOW_POLL_SECONDS)


def forward_logs(client: SyncPrefectClient, run: FlowRun, log: Log, seen: set[UUID]) -> None:
    """Log what is new among the newest lines of a run, where late ones may have earlier timestamps.

    A stage may print faster than lines can be read and sent again: the others are in that run's own log.
    """
    of_run = filters.LogFilter(flow_run_id=filters.LogFilterFlowRunId(any_=[run.id]))
    newest = client.read_logs(of_run, limit=_PAGE, sort=LogSort.TIMESTAMP_DESC)
    new = [entry for entry in reversed(newest) if entry.id not in seen]
    if len(new) == _PAGE:
        log(f"Lines are left out here; all are in the log of the flow run {run.name}.")
    for entry in new:
        seen.add(entry.id)
        log(entry.message)
