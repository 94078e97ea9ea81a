"""What the Prefect UI shows of a run: the state of each stage, and results as Markdown artifacts KEY-LABEL.

Plots are embedded in the Markdown as `data:` URIs: Prefect's image artifact also prints the whole base64 text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import cast
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed

from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.environment import REPORTS_URL
from chunk_grpo.git import is_of_working_tree, uncommitted
from chunk_grpo.orchestration.outcomes import StageOutcome
from chunk_grpo.orchestration.progress import Progress
from chunk_grpo.orchestration.repeating import repeating
from chunk_grpo.orchestration.workspace import Workspace
from chunk_grpo.reporting.markdown import Section, report, slug
from flows._workspace import REPOSITORY

_LIVE_SECONDS = 20.0
_PUBLISHED: dict[tuple[str, str], UUID] = {}
"""Artifacts of this process by run and key."""


def stage_state(outcome: StageOutcome) -> State[StageOutcome]:
    """The state of a stage's task or flow run: `Completed` when it ran, `Cached` when DVC had its outputs."""
    name = "Completed" if outcome.outcome == "ran" else "Cached"
    return Completed(name=name, message=str(outcome), data=outcome)


@contextmanager
def _only_shown() -> Iterator[None]:
    """Log exceptions instead of raising them: a failed display must not end a training run."""
    try:
        yield
    except Exception:
        get_run_logger().warning("Could not update the UI; the run continues.", exc_info=True)


@_only_shown()
def show(workspace: Workspace, sections: Sequence[Section]) -> None:
    """Publish each section as an artifact; its first line says which settings and commit it belongs to.

    A section that the run has published before is updated in place: one of many policies is published after each.
    """
    for each in sections:
        _publish(each, workspace)


@_only_shown()
def show_results(progress: Progress) -> None:
    """Publish the sections of the report with results of the stages that have ended since the last call."""
    from chunk_grpo.reporting.sections import sections_after  # here: importing matplotlib takes seconds

    show(progress.workspace, sections_after(progress.take_new(), progress.workspace.root))


@_only_shown()
def show_outcomes(progress: Progress) -> None:
    """Publish the outcome of each stage."""
    edits, commit = uncommitted(REPOSITORY), progress.workspace.spec.commit
    included = is_of_working_tree(progress.workspace.root, commit)
    text = progress.markdown([] if included else edits, is_of_edits=included)
    page = Section("outcomes", "What became of each stage", text)
    create_markdown_artifact(text, key=_key(page, progress.workspace.label), description=page.title)


@_only_shown()
def show_report(workspace: Workspace, published: str | None) -> None:
    """Publish the report, if there is one, with a link to its page; the log ends with where it is.

    `published` is its folder, relative to the root of all published results; None if they are not published.
    """
    page, folder = _page(published), Path(Layout.below(workspace.root).report)
    if shown := report(folder, page):
        show(workspace, shown)
        get_run_logger().info(f"Report: {page or folder}")


@_only_shown()
def show_comparison(workspaces: Sequence[Workspace], published: Sequence[str]) -> str | None:
    """Publish the tables of the settings, from their reports and scores, as one artifact.

    Returns its text; None if there is no report. `published` is the folder of each workspace's results, as of
    `publish_run`; "" if they are not published.
    """
    from chunk_grpo.reporting.settings_compared import comparison  # here: importing scipy takes a second

    tables = comparison([(it.label, it.root) for it in workspaces])
    if not tables:
        return None
    pages = (_page(folder) for folder in published)
    sources = "\n".join(
        f"- {it.settings}, commit `{it.spec.commit[:12]}`" + (f": [report]({page})" if page else "")
        for it, page in zip(workspaces, pages, strict=True)
    )
    text = f"{tables}\n{sources}\n"
    title = "Presets and variants of this run"
    create_markdown_artifact(text, key="comparison-ablations", description=title)
    return text


def live(workspace: Workspace, stage: str) -> AbstractContextManager[None]:
    """Show the reward curve of a running training stage as one artifact, updated in place."""
    kind, _, item = stage.partition("@")
    variant, _, seed = item.rpartition("-")
    shown = ""

    @_only_shown()
    def follow() -> None:
        from flows._live import live_curves  # here: importing matplotlib takes seconds

        nonlocal shown
        curves = live_curves(workspace.root, variant, seed)
        if curves is None or curves.markdown == shown:
            return
        _publish(curves, workspace)
        shown = curves.markdown

    return repeating(follow, _LIVE_SECONDS) if kind == "train" else nullcontext()


def _publish(section: Section, workspace: Workspace) -> None:
    """Publish a section, in place of what this run published under its key."""
    key, run = _key(section, workspace.label), str(flow_run.id)
    text = f"{workspace.settings}, commit `{workspace.spec.commit[:12]}`.\n\n{section.markdown}"
    if (artifact := _PUBLISHED.get((run, key))) is None:
        made = create_markdown_artifact(text, key=key, description=section.title)
        _PUBLISHED[run, key] = cast("UUID", made)
        return
    with get_client(sync_client=True) as client:
        client.update_artifact(artifact, ArtifactUpdate(data=text))


def _page(published: str | None) -> str | None:
    """URL of the report's page; None if it is not published, or where browsers find it is not known."""
    url = os.environ.get(REPORTS_URL)
    return f"{url}/{published}/report/index.html" if url and published else None


def _key(section: Section, label: str) -> str:
    return slug(f"{section.key}-{label}")
