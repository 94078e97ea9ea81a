"""Flow `chunk-grpo`, deployment `ablations`: presets, or some variants of them, in one run, side by side on pools."""

from __future__ import annotations

from contextlib import ExitStack

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed

from chunk_grpo.config import Overrides
from chunk_grpo.git import resolved
from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.progress import summary
from chunk_grpo.orchestration.workspace import RunSpec
from flows._stages import run_stages
from flows._workspace import REPOSITORY, workspace


@flow(name="chunk-grpo", persist_result=False)
def ablations(
    presets: tuple[str, ...] = ("tiny",),
    variants: tuple[str, ...] | None = None,
    overrides: Overrides = {},
    force: bool = False,
) -> State[None]:
    """Run presets together; what does not depend on a stage that fails goes on.

    Args:
        presets: Presets of conf/preset/.
        variants: Of each preset only these; all when left out.
        overrides: Other values for parameters of all presets.
        force: Run every stage, cached or not.
    """
    commands, commit = Commands(), resolved(REPOSITORY, "HEAD")
    with ExitStack() as stack:
        specs = [
            RunSpec(commit=commit, preset=preset, overrides=overrides, variants=variants)
            for preset in dict.fromkeys(presets)
        ]
        spaces = [stack.enter_context(workspace(spec, commands, get_run_logger().info)) for spec in specs]
        ended = run_stages(spaces, force=force, keep_going=True)
    return Completed(message=summary(ended))
