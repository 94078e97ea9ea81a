"""Flow `chunk-grpo`, deployment `reevaluate`: evaluate published models again and compare with earlier scores."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events import emit_event
from prefect.runtime import flow_run
from prefect.states import Completed

from chunk_grpo.artifacts.storage import join
from chunk_grpo.environment import SCORE_MOVED
from chunk_grpo.git import resolved
from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.presets import Override
from chunk_grpo.orchestration.workspace import RunSpec, TrainedModels
from chunk_grpo.reporting.history import Evaluation, measure
from chunk_grpo.reporting.history_page import alert, summary
from chunk_grpo.reporting.history_store import record
from chunk_grpo.reporting.markdown import slug
from flows._names import name_of_reevaluate
from flows._stages import run_stages
from flows._ui import show
from flows._workspace import REPOSITORY, publish_root, workspace

_UNSUCCESSFUL = [StateType.FAILED, StateType.CRASHED, StateType.CANCELLED, StateType.CANCELLING]


@flow(name="chunk-grpo", flow_run_name=name_of_reevaluate, persist_result=False)
def reevaluate(preset: str = "tiny", new_seeds: bool = True, overrides: tuple[Override, ...] = ()) -> State[None]:
    """Evaluate the newest published models of a preset with its current scorers, and compare with earlier results.

    Args:
        preset: Preset whose models were published by the last run of deployment `full`.
        new_seeds: Draw new images, with seeds from the scheduled time. If off, score the existing images.
        overrides: Changes of parameters, as after `dvc exp run -S`, for example of scorers.
    """
    if (later := _later_run()) is not None:
        when = f"planned for {later.expected_start_time:%Y-%m-%d %H:%M} UTC"
        measures = f"Late: {later.name}, {when}, is due too and measures the same models."
        return Completed(name="Nothing", message=measures)
    models = TrainedModels.of_published_run(join(publish_root(), preset))
    if models is None:
        nothing = f"No finished run of preset {preset} is published in {publish_root()}."
        return Completed(name="Nothing", message=nothing)
    planned = flow_run.scheduled_start_time or datetime.now(UTC)
    if new_seeds:
        overrides = (f"generate.seed={int(planned.timestamp()) // 60}", *overrides)
    code = resolved(REPOSITORY, "HEAD")
    spec = RunSpec(commit=code, preset=preset, overrides=overrides, models=models)
    with workspace(spec, Commands(), get_run_logger().info) as here:
        run_stages([here])
        name = f"{planned:%Y-%m-%d-%H%M}-{slug(flow_run.name)}"
        time = datetime.fromtimestamp(planned.timestamp(), UTC)
        evaluation = Evaluation(name, time, preset, models.commit, code)
        recorded = record(publish_root(), measure(here.root, evaluation))
    show(here, [recorded.trend])
    if text := alert(recorded.history, recorded.newest):
        get_run_logger().warning(text)
        emit_event(
            SCORE_MOVED,
            resource={"prefect.resource.id": f"{SCORE_MOVED}.{preset}", "prefect.resource.name": preset},
            payload={"text": text},
        )
    state = "Nothing" if recorded.repeats else "Completed"
    return Completed(name=state, message=summary(recorded.newest, recorded.repeats))


def _later_run() -> FlowRun | None:
    """Run of the same schedule that was planned for later than this one and is due; None if this one is not scheduled.

    After a time without a worker all missed runs are due, and each would measure the models of today.
    """
    with get_client(sync_client=True) as client:
        this = client.read_flow_run(UUID(flow_run.id))
        planned = this.expected_start_time
        if not this.auto_scheduled or this.deployment_id is None or planned is None:
            return None
        wanted = filters.FlowRunFilter(
            deployment_id=filters.FlowRunFilterDeploymentId(any_=[this.deployment_id]),
            expected_start_time=filters.FlowRunFilterExpectedStartTime(after_=planned),
            state=filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(not_any_=_UNSUCCESSFUL)),
        )
        found = client.read_flow_runs(flow_run_filter=wanted, sort=FlowRunSort.EXPECTED_START_TIME_ASC)
    now = datetime.now(UTC)
    due = [run for run in found if run.expected_start_time and planned < run.expected_start_time <= now]
    later = [run for run in due if run.auto_scheduled and run.parameters == this.parameters]
    return later[-1] if later else None
