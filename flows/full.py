"""Flow `chunk-grpo`: the whole DAG of dvc.yaml for one preset, each DVC stage one Prefect task.

Stages run one after the other, independent ones too: DVC's lock lets overlapping stages of one workspace fail
at once, and on one machine they would only share the same cores. Which stages there are, dvc.yaml says alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.settings import PREFECT_HOME
from prefect.states import Completed

from flows._dvc import (
    StageOutcome,
    StageSpec,
    compose_preset,
    has_remote,
    push_run_cache,
    run_stage,
    stage_order,
)
from flows._pool import run_on_pool
from flows._ui import REPORT_FOLDER, publish_outcomes, publish_report, stage_state, summary
from flows._workspace import clone_workspace

REPOSITORY = Path(__file__).resolve().parents[1]


@flow(name="chunk-grpo", persist_result=False)
def full(
    preset: str = "tiny", overrides: Sequence[str] = (), until: str | None = None, force: bool = False
) -> State[None]:
    """Run the pipeline: L1 profile, chunks, training, images, scores, report.

    Args:
        preset: a preset of conf/preset/.
        overrides: Hydra overrides of its parameters, such as `train.iterations=20`.
        until: stop after this stage or group of stages (`profile_l1`, `train`, `train@chunk`).
        force: run every stage, cached or not.
    """
    log = get_run_logger()
    workspace = clone_workspace(REPOSITORY, _destination())
    log.info("Commit %s in %s", workspace.commit[:12], workspace.path)
    if workspace.uncommitted:
        log.warning("Uncommitted changes are not part of this run:\n%s", "\n".join(workspace.uncommitted))
    compose_preset(workspace.path, preset, overrides)
    stages = stage_order(workspace.path, None if until is None else [until])
    outcomes: list[StageOutcome] = []
    try:
        for spec in stages:
            state = run(spec, workspace.path, force, return_state=True)
            outcomes.append(cast("StageOutcome", state.result()))  # raises what the stage has raised
    finally:
        publish_outcomes(" ".join(["Preset", preset, *overrides]), workspace, stages, outcomes)
        if has_remote(workspace.path):
            push(workspace.path)
    publish_report(workspace.path / REPORT_FOLDER)
    return Completed(message=summary(stages, outcomes))


@task(task_run_name="{spec.name}", cache_policy=NO_CACHE, persist_result=False)
def run(spec: StageSpec, workspace: Path, force: bool) -> State[StageOutcome]:
    """Run a stage here, or on the work pool that dvc.yaml names for it."""
    log = get_run_logger().info
    if spec.work_pool is None:
        return stage_state(run_stage(spec.name, workspace, log, force=force))
    return stage_state(run_on_pool(spec.name, spec.work_pool, workspace, log, force=force))


@task(retries=2, retry_delay_seconds=10, cache_policy=NO_CACHE, persist_result=False)
def push(workspace: Path) -> None:
    """Push outputs and run cache to the DVC remote, so that another machine recomputes nothing."""
    push_run_cache(workspace, get_run_logger().info)


def _destination() -> Path:
    """A folder of this flow run's own; a retry of the same flow run gets another one."""
    return Path(PREFECT_HOME.value()) / "runs" / f"{flow_run.name}-{flow_run.run_count}"
