"""What the Prefect UI shows of a run: the state of each stage, the outcome table, the report and its plots.

Plots are shown inside Markdown, as `data:` URIs: Prefect's own image artifact prints the whole base64 text
beside them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path

from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows._dvc import StageOutcome, StageSpec
from flows._workspace import Workspace

REPORT_FOLDER = Path("artifacts/report")
_MEDIA_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}


def stage_state(outcome: StageOutcome) -> State[StageOutcome]:
    """The state of a stage's task or flow run: `Completed` when it ran, `Cached` when DVC had its outputs."""
    name = "Completed" if outcome.outcome == "ran" else "Cached"
    return Completed(name=name, message=str(outcome), data=outcome)


def summary(stages: Sequence[StageSpec], outcomes: Sequence[StageOutcome]) -> str:
    """One line, such as `12 stages: 3 ran, 9 restored`."""
    kinds = [outcome.outcome for outcome in outcomes]
    counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    return f"{len(stages)} stages: " + ", ".join(counts or ["none finished"])


def publish_outcomes(
    title: str, workspace: Workspace, stages: Sequence[StageSpec], outcomes: Sequence[StageOutcome]
) -> None:
    """Publish the outcome table (artifact `outcomes`); a stage without outcome failed or was not reached."""
    done = {outcome.stage: outcome for outcome in outcomes}
    missing = [stage.name for stage in stages if stage.name not in done]
    rows = []
    for stage in stages:
        if outcome := done.get(stage.name):
            result = f"{outcome.outcome} | {outcome.seconds:.1f}"
        else:
            result = "**failed** |" if stage.name == missing[0] else "not reached |"
        rows.append(f"| {stage.name} | {stage.work_pool or ''} | {result} |")
    total = sum(outcome.seconds for outcome in outcomes)
    lines = [
        f"## {title}",
        f"{summary(stages, outcomes)}, {total:.0f} s in all.",
        f"Commit `{workspace.commit[:12]}` in `{workspace.path}`.",
        "",
        "| stage | work pool | outcome | seconds |",
        "|---|---|---|---:|",
        *rows,
    ]
    if workspace.uncommitted:
        changes = "\n".join(workspace.uncommitted)
        lines += ["", f"**Not part of this run:** uncommitted changes of the checkout.\n```\n{changes}\n```"]
    create_markdown_artifact("\n".join(lines), key="outcomes", description="What became of each stage")


def publish_report(folder: Path) -> list[str]:
    """Publish report.md and every plot of a folder; return the keys, none when there is no report."""
    report = folder / "report.md"
    if not report.is_file():
        return []
    create_markdown_artifact(
        key="report",
        markdown=with_inline_images(report.read_text(encoding="utf-8"), folder),
        description=f"As a page of its own: {folder / 'index.html'}",
    )
    keys = ["report"]
    for plot in sorted(folder.rglob("*.png")):
        # Prefect allows lower-case letters, digits and dashes in a key.
        key = re.sub(r"[^a-z0-9]+", "-", plot.stem.lower()).strip("-")
        create_markdown_artifact(f"![{plot.stem}]({_data_uri(plot)})", key=key, description=plot.name)
        keys.append(key)
    return keys


def with_inline_images(markdown: str, folder: Path) -> str:
    """Replace the links to image files of a folder by the images themselves; leave every other link."""

    def inline(match: re.Match[str]) -> str:
        file = folder / match[2]
        if file.suffix not in _MEDIA_TYPES or not file.is_file():
            return match[0]
        return f"![{match[1]}]({_data_uri(file)})"

    return re.sub(r"!\[([^\]]*)\]\(([^)\s]+)\)", inline, markdown)


def _data_uri(file: Path) -> str:
    return f"data:{_MEDIA_TYPES[file.suffix]};base64,{base64.b64encode(file.read_bytes()).decode('ascii')}"
