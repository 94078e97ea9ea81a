"""Flow `stage`: one stage in a given workspace, on the work pool that it is deployed to."""

from __future__ import annotations

from pathlib import Path

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State

from flows._dvc import StageOutcome, run_stage
from flows._ui import stage_state


@flow(name="stage", flow_run_name="{name}", persist_result=False)
def stage(name: str, workspace: Path, force: bool = False) -> State[StageOutcome]:
    """Bring one stage up to date.

    Args:
        name: the stage as in dvc.yaml.
        workspace: root of a clone that the parent flow has made, on a disk that this worker sees.
        force: run it even when DVC knows the result.
    """
    return stage_state(run_stage(name, workspace, get_run_logger().info, force=force))
