"""Bring the stages of workspaces up to date, one Prefect task per stage: restore it, or run it on its work pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture

from chunk_grpo.artifacts.io import write_text
from chunk_grpo.artifacts.kept import forget_recorded as forget
from chunk_grpo.artifacts.publishing import publish
from chunk_grpo.artifacts.run_record import RunFacts
from chunk_grpo.artifacts.storage import join
from chunk_grpo.errors import TransientError
from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.outcomes import RemoteError, StageOutcome
from chunk_grpo.orchestration.pipeline import StageSpec
from chunk_grpo.orchestration.progress import Progress
from chunk_grpo.orchestration.workspace import Workspace
from chunk_grpo.reporting.markdown import slug
from flows._names import name_of_task
from flows._pool import run_on_pool
from flows._ui import live, show_outcomes, show_results, stage_state
from flows._workspace import publish_root


def _may_pass(task: Any, run: Any, state: State[Any]) -> bool:
    error = state.result(raise_on_failure=False)
    return isinstance(error, TransientError) or (isinstance(error, RemoteError) and error.may_pass)


_LOOK_SECONDS = 5.0
_OPTIONS: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}  # DVC owns caching
_RETRIES: dict[str, Any] = {"retries": 2, "retry_delay_seconds": 10, "retry_condition_fn": _may_pass}


@task(task_run_name="restore", **_RETRIES, **_OPTIONS)
def restore(workspace: Workspace, targets: Sequence[str] | None) -> dict[str, StageOutcome]:
    """Restore stages (None: all) and their dependencies from the DVC cache, and the missing ones from the remote."""
    return workspace.restore(targets, get_run_logger().info)


@task(task_run_name="push", **_RETRIES, **_OPTIONS)
def push(workspace: Workspace) -> None:
    """Push outputs and run cache to the DVC remote for other machines."""
    workspace.push(get_run_logger().info)


@task(task_run_name="fetch {stage}", **_RETRIES, **_OPTIONS)
def fetch(workspace: Workspace, stage: str, outputs: Sequence[Mapping[str, Any]]) -> None:
    """Fetch the outputs that a stage made in another workspace, from the DVC cache or remote."""
    workspace.adopt(stage, outputs, get_run_logger().info)


def forget_recorded(workspace: Workspace) -> None:
    """Remove states and copies of checkpoints whose results DVC has. Call it when others can have the results."""
    forget(workspace.root, _remove_copies)


def _remove_copies(location: str) -> None:
    from chunk_grpo.training.copies import remove_copies  # here: imports torch

    remove_copies(location)


def publish_run(workspace: Workspace, run: str) -> str:
    """Publish the results of a finished run: of an unchanged preset as its newest, of others under the run's name.

    Of several settings of a preset, each has a folder of its own under the run's name, also if it is the preset's.
    Returns the folder, relative to the root of all published results. All stages must be up to date.
    """
    workspace.pipeline.sort_lock()  # so that equal results have identical lock files
    root, preset = publish_root(), workspace.preset
    workspace.remember()
    facts = RunFacts(preset, workspace.spec.commit, run, workspace.spec.overrides)
    alone = workspace.label == preset
    if workspace.is_preset and alone:
        _publish(workspace, root, facts)
        return preset
    folder = _run_folder(run) + ("" if alone else f"/{slug(workspace.label)}")
    _publish(workspace, join(root, folder), facts)
    return f"{folder}/{preset}"


def _run_folder(run: str) -> str:
    """Folder of what a run publishes under its own name, relative to the root of all published results."""
    return f"runs/{slug(run)}"


@task(task_run_name="publish", **_RETRIES, **_OPTIONS)
def _publish(workspace: Workspace, destination: str, run: RunFacts) -> None:
    """Publish; another attempt continues where the last one ended."""
    publish(workspace.root, destination, run)


@task(task_run_name="publish comparison", **_RETRIES, **_OPTIONS)
def publish_comparison(text: str, run: str) -> None:
    """Publish the tables of a run; the log ends with where they are."""
    file = join(publish_root(), _run_folder(run), "comparison.md")
    write_text(text, file)
    get_run_logger().info(f"Comparison: {file}")


def run_here(spec: StageSpec, workspace: Workspace, *, force: bool) -> StageOutcome:
    """Run a stage in its workspace; the UI shows the curve of a training."""
    logger = get_run_logger()
    with live(workspace, spec.name):
        return workspace.run(spec.name, logger.info, logger.warning, force=force)


def run_stages(
    workspaces: Sequence[Workspace], until: str | None = None, *, force: bool = False, keep_going: bool = False
) -> list[Progress]:
    """Bring the stages of all workspaces up to date; stages on work pools run in parallel.

    `until` is the last stage, or group of stages, to run. The first error of a stage is raised; with `keep_going`,
    after the stages that do not depend on a failed one.
    """
    targets = None if until is None else [until]
    progress = [Progress(it, it.pipeline.stages(targets)) for it in workspaces]
    ended: SimpleQueue[PrefectFuture[Any]] = SimpleQueue()
    active: dict[PrefectFuture[Any], tuple[Progress, StageSpec]] = {}
    error: BaseException | None = None
    try:
        tasks: list[_Tasks] = []
        for each in progress:
            known = {} if force else restore(each.workspace, targets)
            tasks.append(_Tasks(each, known, force, ended))
            active |= tasks[-1].submit_ready()  # they run while the next workspace is restored
        while error is None or keep_going:
            for of_workspace in tasks:
                active |= of_workspace.submit_ready()
            if not active:
                break
            try:
                future = ended.get(timeout=_LOOK_SECONDS)
            except Empty:
                continue  # a stage may have paused, and left the workspace to another
            each, spec = active.pop(future)
            future.wait()  # otherwise `state` queries the server, which may not have the final state yet
            if future.state.is_completed():
                each.done[spec.name] = future.result()
                if len(each.done) == len(each.stages) or each.done[spec.name].outcome == "ran":
                    show_results(each)
            else:
                each.failed.append(spec.name)
                error = error or future.state.result(raise_on_failure=False)
    finally:
        for each in progress:
            each.workspace.commands.stop()
            show_outcomes(each)
    try:
        for each in progress:  # also after a failure
            if each.workspace.remote:
                push(replace(each.workspace, commands=Commands()))
            forget_recorded(each.workspace)
    finally:
        if error is not None:
            raise error  # rather than a push error, which it may have caused
    return progress


@dataclass
class _Tasks:
    """Tasks of a workspace's stages. Each is submitted when it can begin: one that waits would count as running."""

    progress: Progress
    """The stages."""
    known: Mapping[str, StageOutcome]
    """Outcomes of the restored stages."""
    force: bool
    """As in `run_stages`."""
    ended: SimpleQueue[PrefectFuture[Any]]
    """Receives each task when it has ended."""
    _all: dict[str, PrefectFuture[Any]] = field(default_factory=dict)

    def submit_ready(self) -> dict[PrefectFuture[Any], tuple[Progress, StageSpec]]:
        """Submit the stages whose inputs exist; of those that run in the workspace, one at a time, as DVC does."""
        stages, done = self.progress.stages, self.progress.done
        names = {spec.name for spec in stages}
        active = self._all.keys() - {*done, *self.progress.failed, *self.progress.workspace.paused}
        is_free = not any(self._is_here(spec) for spec in stages if spec.name in active)
        ready: dict[PrefectFuture[Any], tuple[Progress, StageSpec]] = {}
        for spec in stages:
            has_inputs = done.keys() >= names.intersection(spec.needs)
            if spec.name in self._all or not has_inputs or (self._is_here(spec) and not is_free):
                continue
            is_free = is_free and not self._is_here(spec)
            ready[self._submitted(spec)] = self.progress, spec
        return ready

    def _submitted(self, spec: StageSpec) -> PrefectFuture[Any]:
        # They have ended; the UI draws lines from them.
        needed = [self._all[name] for name in spec.needs if name in self._all]
        known, here = self.known.get(spec.name), self.progress.workspace
        task = _run.submit(spec, here, known, self.force, return_state=False, wait_for=needed)
        task.add_done_callback(self.ended.put)
        self._all[spec.name] = task
        return task

    def _is_here(self, spec: StageSpec) -> bool:
        """Whether the stage is to run in the workspace."""
        return spec.work_pool is None and spec.name not in self.known


@task(task_run_name=name_of_task, **_OPTIONS)
def _run(spec: StageSpec, workspace: Workspace, known: StageOutcome | None, force: bool) -> State[StageOutcome]:
    """Run a stage here or on its work pool, unless it is known to be up to date."""
    if known is None:
        run = run_here if spec.work_pool is None else _run_there
        known = run(spec, workspace, force=force)
    return stage_state(known)


def _run_there(spec: StageSpec, workspace: Workspace, *, force: bool) -> StageOutcome:
    if workspace.remote:
        push(workspace)  # the worker may use another DVC cache
    outcome, outputs = run_on_pool(spec, workspace, get_run_logger().info, force=force)
    try:
        fetch(workspace, spec.name, outputs)
    except RemoteError as error:
        if workspace.remote:
            raise
        raise RuntimeError(
            f"stage {spec.name} ran on pool {spec.work_pool}, but its outputs did not arrive: its worker shares "
            "neither the DVC cache nor a DVC remote with this one. Set one: `dvc remote add -d NAME s3://BUCKET/PATH`"
        ) from error
    return outcome
