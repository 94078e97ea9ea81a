"""The workspace of one flow run, below PREFECT_HOME."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect.runtime import flow_run
from prefect.settings import PREFECT_HOME

from chunk_grpo import environment
from chunk_grpo.errors import ConfigError
from chunk_grpo.git import WORKING_TREE, commit_of_working_tree, resolved, uncommitted
from chunk_grpo.guard import die_with_parent
from chunk_grpo.orchestration.commands import Commands, Log
from chunk_grpo.orchestration.workspace import RunSpec, Workspace, make_workspace
from chunk_grpo.reporting.markdown import slug

REPOSITORY = Path(os.environ.get(environment.REPOSITORY) or Path(__file__).resolve().parents[1])
"""Repository whose commits and DVC cache this worker's runs use."""


def chosen_commit(commit: str, log: Log) -> str:
    """Hash of the commit that a run uses; the log says first what of the checkout is not part of it.

    `commit` is a commit, branch or tag, or `working-tree`: the files of this machine's checkout as they are.
    """
    edits = ", ".join(" ".join(line.split()) for line in uncommitted(REPOSITORY))
    if commit == WORKING_TREE:
        if edits:
            log(f"This run is of uncommitted edits, on this machine alone, and is not published: {edits}")
        return commit_of_working_tree(REPOSITORY)
    if edits:
        log(f"Not part of this run: uncommitted edits ({edits}). With `commit: {WORKING_TREE}` they are.")
    try:
        return resolved(REPOSITORY, commit)
    except RuntimeError as error:
        raise ConfigError(
            f"commit: must be a commit, branch or tag that {REPOSITORY} has, got {commit!r}; fetch it there"
        ) from error


def publish_root() -> str:
    """Folder or URL below which finished runs are published, PRESET/..."""
    return os.environ.get(environment.PUBLISH) or str(_home() / "published")


@contextmanager
def workspace(
    spec: RunSpec, commands: Commands, log: Log, label: str | None = None, *, is_listed: bool = False
) -> Iterator[Workspace]:
    """Make a workspace for this flow run; arguments and errors as of `make_workspace`.

    `is_listed`: its results are an experiment, named after the run and the label.
    """
    if worker := os.environ.get(environment.WORKER_PID):
        die_with_parent(int(worker))  # without its worker the run would hold the GPU and could not be cancelled
    what = slug(label or spec.preset or "params")
    name = f"{slug(flow_run.name)}-{what}-{flow_run.id}-{flow_run.run_count}"
    experiment = slug(f"{flow_run.name} {label or ''}".strip()) if is_listed else None
    with make_workspace(REPOSITORY, _home(), name, spec, commands, log, label, experiment) as made:
        yield made


def _home() -> Path:
    return Path(PREFECT_HOME.value()).resolve()
