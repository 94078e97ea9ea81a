"""chunk_grpo/orchestration/progress.py: a run in one line and as a table."""

from pathlib import Path

import pytest

from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.outcomes import StageOutcome
from chunk_grpo.orchestration.pipeline import StageSpec
from chunk_grpo.orchestration.progress import Progress, summary
from chunk_grpo.orchestration.workspace import RunSpec, Workspace


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    """Progress of four stages: one failed, one was not reached."""
    spec = RunSpec(commit="c" * 40, preset="tiny", overrides=("report.title=Ours",))
    here = Workspace(tmp_path, spec, "tiny", "tiny", Commands(), remote=False, is_preset=False)
    stages = [StageSpec("a", ()), StageSpec("b", ()), StageSpec("c", (), "gpu"), StageSpec("d", ())]
    done = {"a": StageOutcome("a", "ran", 1.26, 12345), "b": StageOutcome("b", "restored", 0.5, 0)}
    return Progress(here, stages, done, ["c"])


def test_the_page_has_a_row_for_each_stage(progress: Progress, tmp_path: Path) -> None:
    assert progress.markdown([" M params.yaml"]).splitlines() == [
        "## Preset tiny, with `report.title=Ours`",
        "4 stages: 1 ran, 1 restored, 2 s in all.",
        f"Commit `cccccccccccc` in `{tmp_path}`.",
        "",
        "| stage | work pool | outcome | seconds | bytes |",
        "|---|---|---|---:|---:|",
        "| a |  | ran | 1.3 | 12,345 |",
        "| b |  | restored | 0.5 | 0 |",
        "| c | gpu | **failed** | | |",
        "| d |  | not reached | | |",
        "",
        "**Not part of this run:** uncommitted changes of the checkout.",
        "```",
        " M params.yaml",
        "```",
    ]


def test_the_page_of_uncommitted_edits_says_so(progress: Progress, tmp_path: Path) -> None:
    lines = progress.markdown([], is_of_edits=True).splitlines()
    assert lines[2] == f"Commit `cccccccccccc`, uncommitted edits, in `{tmp_path}`."
    assert "Not part of this run" not in "".join(lines)


def test_several_workspaces_are_summed_up(progress: Progress) -> None:
    nothing = Progress(progress.workspace, progress.stages[:1])
    assert summary([progress, nothing]) == "5 stages: 1 ran, 1 restored"
    assert summary([nothing]) == "1 stages: none finished"


def test_each_stage_is_new_once(progress: Progress) -> None:
    assert progress.take_new() == ["a", "b"]
    progress.done["d"] = StageOutcome("d", "ran", 1.0, 0)
    assert (progress.take_new(), progress.take_new()) == (["d"], [])
