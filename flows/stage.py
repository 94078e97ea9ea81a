"""Flows `encode`, `profile`, `train`, `generate`, `score`: run one stage on the work pool of the deployment."""

from __future__ import annotations

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State

from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.outcomes import StageOutcome
from chunk_grpo.orchestration.workspace import RunSpec
from flows._pool import report_outputs
from flows._stages import forget_recorded, push, restore, run_here
from flows._ui import stage_state
from flows._workspace import workspace


@flow(persist_result=False)
def stage(name: str, spec: RunSpec, force: bool = False) -> State[StageOutcome]:
    """Run one stage in a new workspace on this worker. The flows `full`, `ablations` and `reevaluate` start it.

    Args:
        name: Name of the stage in dvc.yaml.
        spec: Specification of the parent flow's workspace.
        force: Run the stage even if its result is cached.

    Raises:
        ValueError: `name` is a group of stages.
        RuntimeError: The inputs of the stage are neither in this worker's DVC cache nor in the DVC remote.
    """
    commands = Commands()
    try:
        with workspace(spec, commands, get_run_logger().info) as here:
            stages = {each.name: each for each in here.pipeline.stages([name])}
            if name not in stages:
                raise ValueError(f"{name!r} is a group of stages; choose one: {', '.join(stages)}")
            this = stages[name]
            known = restore(here, [*this.needs] if force else [name])
            if missing := [needed for needed in this.needs if needed not in known]:
                raise RuntimeError(
                    f"stage {name}: the outputs of {', '.join(missing)} are neither in this worker's DVC cache nor in "
                    "a DVC remote. Set one for all workers: `dvc remote add -d NAME s3://BUCKET/PATH`"
                )
            outcome = known.get(name) or run_here(this, here, force=force)
            if here.remote:
                push(here)
            forget_recorded(here)
            report_outputs(here, name)
    finally:
        commands.stop()
    return stage_state(outcome)


encode, profile, train, generate, score = (
    stage.with_options(name=name) for name in ("encode", "profile", "train", "generate", "score")
)
