"""Flow `chunk-grpo`, deployment `ablations`: several presets, or variants of them, in parallel in one run."""

from __future__ import annotations

from contextlib import ExitStack

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed

from chunk_grpo.git import WORKING_TREE
from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.presets import Override, combinations
from chunk_grpo.orchestration.progress import summary
from chunk_grpo.orchestration.workspace import RunSpec
from flows._names import labels, name_of_ablations
from flows._stages import publish_comparison, publish_run, run_stages
from flows._ui import show_comparison, show_report
from flows._workspace import chosen_commit, workspace


@flow(name="chunk-grpo", flow_run_name=name_of_ablations, persist_result=False)
def ablations(
    presets: tuple[str, ...] = ("tiny",),
    variants: tuple[str, ...] | None = None,
    overrides: tuple[Override, ...] = (),
    force: bool = False,
    commit: str = "HEAD",
) -> State[None]:
    """Run several presets, or one with several values of a parameter, in one flow run, and compare them in one table.

    If a stage fails, the stages that do not depend on it still run.

    Args:
        presets: Names of presets in conf/preset/.
        variants: Variants to run of each preset. Default: all.
        overrides: Changes of parameters of every preset, as after `dvc exp run -S`. `train.learning_rate=1e-4,3e-4`
            runs each preset with either value; several of that kind, with each combination.
        force: Run every stage, even if its result is cached.
        commit: Commit, branch or tag of the code. `working-tree`: the files of the checkout as they are, uncommitted
            edits included; on this machine alone.
    """
    commands, log = Commands(), get_run_logger().info
    code = chosen_commit(commit, log)
    with ExitStack() as stack:
        specs = [
            RunSpec(commit=code, preset=preset, overrides=setting, variants=variants)
            for preset in dict.fromkeys(presets)
            for setting in combinations(overrides)
        ]
        names = labels([spec.preset or "" for spec in specs], [spec.overrides for spec in specs])
        spaces = [
            stack.enter_context(workspace(spec, commands, log, name, is_listed=True))
            for spec, name in zip(specs, names, strict=True)
        ]
        ended = run_stages(spaces, force=force, keep_going=True)
        is_published = commit != WORKING_TREE
        published = [publish_run(space, flow_run.name) if is_published else "" for space in spaces]
        for space, folder in zip(spaces, published, strict=True):
            show_report(space, folder)
        tables = show_comparison(spaces, published)
        if tables and is_published:
            publish_comparison(tables, flow_run.name)
    return Completed(message=summary(ended))
