"""What the Prefect UI shows of a run: the state of each stage and, as Markdown artifacts KEY-PRESET, what came out.

Plots stand inside Markdown, as `data:` URIs: Prefect's own image artifact prints the whole base64 text beside them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import cast
from uuid import UUID

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.objects import State
from prefect.states import Completed

from chunk_grpo.clones import uncommitted
from chunk_grpo.outcomes import StageOutcome, outcome_table, summary
from chunk_grpo.reporting.highlight import Highlight
from flows._dvc import StageSpec
from flows._workspace import REPOSITORY, Workspace

_LIVE_SECONDS = 20.0


def stage_state(outcome: StageOutcome) -> State[StageOutcome]:
    """The state of a stage's task or flow run: `Completed` when it ran, `Cached` when DVC had its outputs."""
    name = "Completed" if outcome.outcome == "ran" else "Cached"
    return Completed(name=name, message=str(outcome), data=outcome)


def show(preset: str, highlights: Sequence[Highlight]) -> None:
    """Publish each of them as an artifact."""
    for each in highlights:
        create_markdown_artifact(each.inline(), key=f"{each.key}-{preset}", description=each.title)


def show_outcomes(
    workspace: Workspace,
    stages: Sequence[StageSpec],
    done: Mapping[str, StageOutcome],
    failed: Collection[str],
) -> None:
    """Publish what became of each stage."""
    spec, names = workspace.spec, [stage.name for stage in stages]
    changes = spec.overrides.model_dump_json(exclude_unset=True)
    lines = [
        f"## Preset {spec.preset}" + ("" if workspace.is_preset else f" with `{changes}`"),
        f"{summary(names, done.values())}, {sum(each.seconds for each in done.values()):.0f} s in all.",
        f"Commit `{spec.commit[:12]}` in `{workspace.root}`.",
        "",
        outcome_table(names, {stage.name: stage.work_pool for stage in stages}, done, failed),
    ]
    if missed := "\n".join(uncommitted(REPOSITORY)):
        lines += ["", f"**Not part of this run:** uncommitted changes of the checkout.\n```\n{missed}\n```"]
    show(spec.preset, [Highlight("outcomes", "What became of each stage", "\n".join(lines))])


def show_report(workspace: Workspace) -> None:
    """Publish the report with its pictures, if there is one, and where it is as a page."""
    folder, preset = workspace.root / "artifacts" / "report", workspace.spec.preset
    report = folder / "report.md"
    if not report.is_file():
        return
    pictures = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.png")}
    url = os.environ.get("CHUNK_GRPO_REPORTS_URL")
    page = f"[The report as a page]({url}/{preset}/report/index.html)\n\n" if url else ""
    text = page + report.read_text(encoding="utf-8")
    show(preset, [Highlight("report", "The report", text, pictures)])


@contextmanager
def live(root: Path, stage: str) -> Iterator[None]:
    """While a training stage runs, show its reward curves: one artifact, which changes."""
    kind, _, variant = stage.partition("@")
    ended = threading.Event()

    def follow() -> None:
        from chunk_grpo.reporting.live import live_curves  # here: with its plots it takes seconds

        artifact, shown = None, ""
        while True:
            is_last = ended.wait(_LIVE_SECONDS)
            if (curves := live_curves(root / "logs", variant)) and (text := curves.inline()) != shown:
                if artifact is None:
                    artifact = create_markdown_artifact(text, key=curves.key, description=curves.title)
                else:
                    with get_client(sync_client=True) as client:
                        client.update_artifact(cast("UUID", artifact), ArtifactUpdate(data=text))
                shown = text
            if is_last:
                return

    thread = threading.Thread(target=copy_context().run, args=(follow,))
    if kind == "train":
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if kind == "train":
            thread.join()
