"""What the Prefect UI shows of a run: the state of each stage, the outcome table, the report and its plots.

Plots are shown inside Markdown, as `data:` URIs: Prefect's own image artifact prints the whole base64 text
beside them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed

from chunk_grpo.clones import uncommitted
from chunk_grpo.outcomes import StageOutcome, outcome_table, summary
from flows._dvc import StageSpec
from flows._workspace import REPOSITORY, Workspace

REPORT_FOLDER = Path("artifacts/report")
_MEDIA_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}


def stage_state(outcome: StageOutcome) -> State[StageOutcome]:
    """The state of a stage's task or flow run: `Completed` when it ran, `Cached` when DVC had its outputs."""
    name = "Completed" if outcome.outcome == "ran" else "Cached"
    return Completed(name=name, message=str(outcome), data=outcome)


@contextmanager
def live_curves(root: Path, stage: str) -> Iterator[None]:
    """While a training stage runs, publish its reward curves again and again."""
    yield


def publish_outcomes(
    workspace: Workspace,
    stages: Sequence[StageSpec],
    done: Mapping[str, StageOutcome],
    failed: Collection[str],
) -> None:
    """Publish what became of each stage (artifact `outcomes`)."""
    spec = workspace.spec
    names = [stage.name for stage in stages]
    changes = spec.overrides.model_dump_json(exclude_unset=True)
    lines = [
        f"## Preset {spec.preset}" + (f" with {changes}" if changes != "{}" else ""),
        f"{summary(names, done.values())}, {sum(each.seconds for each in done.values()):.0f} s in all.",
        f"Commit `{spec.commit[:12]}` in `{workspace.root}`.",
        "",
        outcome_table(names, {stage.name: stage.work_pool for stage in stages}, done, failed),
    ]
    if changes := "\n".join(uncommitted(REPOSITORY)):
        lines += ["", f"**Not part of this run:** uncommitted changes of the checkout.\n```\n{changes}\n```"]
    create_markdown_artifact("\n".join(lines), key="outcomes", description="What became of each stage")


def publish_report(folder: Path) -> None:
    """Publish report.md and every plot of a folder, if there is a report."""
    report = folder / "report.md"
    if not report.is_file():
        return
    create_markdown_artifact(
        key="report",
        markdown=with_inline_images(report.read_text(encoding="utf-8"), folder),
        description=f"As a page of its own: {folder / 'index.html'}",
    )
    for plot in sorted(folder.rglob("*.png")):
        # Prefect allows lower-case letters, digits and dashes in a key.
        key = re.sub(r"[^a-z0-9]+", "-", plot.stem.lower()).strip("-")
        create_markdown_artifact(f"![{plot.stem}]({_data_uri(plot)})", key=key, description=plot.name)


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
