"""What the Prefect UI shows of a run: the state of each stage and, as Markdown artifacts KEY-PRESET, what came out.

Plots stand inside Markdown, as `data:` URIs: Prefect's own image artifact prints the whole base64 text beside them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.objects import State
from prefect.states import Completed

from chunk_grpo.errors import ChunkGrpoError
from chunk_grpo.orchestration.clones import uncommitted
from chunk_grpo.orchestration.outcomes import StageOutcome
from chunk_grpo.orchestration.progress import Progress
from chunk_grpo.orchestration.repeating import repeating
from chunk_grpo.orchestration.workspace import Workspace
from chunk_grpo.reporting.highlight import Highlight, report
from flows._workspace import REPOSITORY

_LIVE_SECONDS = 20.0


def stage_state(outcome: StageOutcome) -> State[StageOutcome]:
    """The state of a stage's task or flow run: `Completed` when it ran, `Cached` when DVC had its outputs."""
    name = "Completed" if outcome.outcome == "ran" else "Cached"
    return Completed(name=name, message=str(outcome), data=outcome)


def show(preset: str, highlights: Sequence[Highlight]) -> None:
    """Publish each of them as an artifact."""
    for each in highlights:
        create_markdown_artifact(each.inline(), key=f"{each.key}-{preset}", description=each.title)


def show_results(progress: Progress) -> None:
    """Publish what there is to see by now."""
    try:
        show(progress.workspace.spec.preset, progress.new_highlights())
    except ChunkGrpoError as error:  # the clone may be of another version than the worker
        get_run_logger().warning("Nothing is shown of the results so far: %s", error)


def show_outcomes(progress: Progress) -> None:
    """Publish what became of each stage."""
    text = progress.markdown(uncommitted(REPOSITORY))
    show(progress.workspace.spec.preset, [Highlight("outcomes", "What became of each stage", text)])


def show_report(workspace: Workspace) -> None:
    """Publish the report, if there is one, and where it is as a page."""
    preset, url = workspace.spec.preset, os.environ.get("CHUNK_GRPO_REPORTS_URL")
    page = f"{url}/{preset}/report/index.html" if url else None
    show(preset, report(workspace.root / "artifacts" / "report", page))


def live(root: Path, stage: str) -> AbstractContextManager[None]:
    """While a training stage runs, show its reward curves: one artifact, which changes."""
    kind, _, variant = stage.partition("@")
    artifact: UUID | None = None
    shown = ""

    def follow() -> None:
        from chunk_grpo.reporting.live import live_curves  # here: with its plots it takes seconds

        nonlocal artifact, shown
        if (curves := live_curves(root / "logs", variant)) is None or (text := curves.inline()) == shown:
            return
        if artifact is None:
            artifact = cast("UUID", create_markdown_artifact(text, key=curves.key, description=curves.title))
        else:
            with get_client(sync_client=True) as client:
                client.update_artifact(artifact, ArtifactUpdate(data=text))
        shown = text

    return repeating(follow, _LIVE_SECONDS) if kind == "train" else nullcontext()
