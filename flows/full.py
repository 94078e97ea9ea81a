"""Flow `chunk-grpo`, deployment `full`: the whole DAG of dvc.yaml, one Prefect task per DVC stage."""

from __future__ import annotations

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed

from chunk_grpo.git import WORKING_TREE
from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.presets import Override
from chunk_grpo.orchestration.progress import summary
from chunk_grpo.orchestration.workspace import RunSpec
from flows._names import name_of_full
from flows._stages import publish_run, run_stages
from flows._ui import show_report
from flows._workspace import chosen_commit, workspace


@flow(name="chunk-grpo", flow_run_name=name_of_full, persist_result=False)
def full(
    preset: str | None = None,
    overrides: tuple[Override, ...] = (),
    until: str | None = None,
    force: bool = False,
    commit: str = "HEAD",
) -> State[None]:
    """Run the whole pipeline: L1 profile, chunks, training, images, scores, report.

    Args:
        preset: Name of a preset in conf/preset/. Default: params.yaml of the commit.
        overrides: Changes of parameters, as after `dvc exp run -S`: `train.iterations=20`, `~variants.dance`.
        until: Last stage, or group of stages, to run: for example `profile_l1`, `train` or `train@chunk-0`.
        force: Run every stage, even if its result is cached.
        commit: Commit, branch or tag of the code. `working-tree`: the files of the checkout as they are, uncommitted
            edits included; on this machine alone, and not published.
    """
    commands, log = Commands(), get_run_logger().info
    spec = RunSpec(commit=chosen_commit(commit, log), preset=preset, overrides=overrides)
    with workspace(spec, commands, log, is_listed=True) as here:
        (progress,) = run_stages([here], until, force=force)
        whole = until is None and commit != WORKING_TREE
        show_report(here, publish_run(here, flow_run.name) if whole else None)
    return Completed(message=summary([progress]))
