"""flows/_ui.py: what is published of a run, without a server."""

from contextlib import nullcontext
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.actions import ArtifactUpdate

from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.outcomes import StageOutcome
from chunk_grpo.orchestration.progress import Progress
from chunk_grpo.orchestration.workspace import RunSpec, Workspace
from chunk_grpo.reporting.markdown import Section
from flows import _ui
from tests.reporting.conftest import SCORERS, VARIANTS, write_run


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Artifacts by key, as they are created."""
    found: dict[str, str] = {}
    monkeypatch.setattr(_ui, "create_markdown_artifact", lambda text, key, description: found.update({key: text}))
    return found


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A finished workspace with its report. Read only."""
    root = tmp_path_factory.mktemp("finished")
    write_run(root, 2, 1, 16).build()
    spec = RunSpec(commit="c" * 40, preset="tiny", overrides=("report.title=Ours",))
    return Workspace(root, spec, "tiny", "tiny lr=1", Commands(), remote=False, is_preset=False)


def test_sections_are_published_after_their_stages(workspace: Workspace, published: dict[str, str]) -> None:
    progress = Progress(workspace, [])

    def after(*stages: str) -> set[str]:
        published.clear()
        progress.done |= {stage: StageOutcome(stage, "ran", 1.0, 0) for stage in stages}
        _ui.show_results(progress)
        return {*published}

    assert after("profile_l1", "chunk_boundaries") == {"profile-tiny-lr-1"}
    assert published["profile-tiny-lr-1"].startswith(
        "Preset tiny, with `report.title=Ours`, commit `cccccccccccc`.\n\n## How fast the image changes"
    )
    assert after("report") == set()
    scored = [f"score@{variant}-{scorer}" for variant in VARIANTS for scorer in SCORERS]
    assert after(*scored) == {"answer-tiny-lr-1", "scores-tiny-lr-1"}
    assert "## Does it help? " in published["answer-tiny-lr-1"]


def test_a_section_that_is_published_again_is_updated(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact, texts = uuid4(), list[str]()

    class Client:
        def update_artifact(self, updated: UUID, change: ArtifactUpdate) -> None:
            assert updated == artifact
            texts.append(str(change.data))

    def create(text: str, key: str, description: str) -> UUID:
        texts.append(f"{key} {text}")
        return artifact

    monkeypatch.setattr(_ui, "create_markdown_artifact", create)
    monkeypatch.setattr(_ui, "get_client", lambda **_: nullcontext(Client()))
    monkeypatch.setattr(_ui, "_PUBLISHED", {})
    _ui.show(workspace, [Section("images", "Images", "Of one policy.")])
    _ui.show(workspace, [Section("images", "Images", "Of two policies.")])
    before = "Preset tiny, with `report.title=Ours`, commit `cccccccccccc`.\n\n"
    assert texts == [f"images-tiny-lr-1 {before}Of one policy.", f"{before}Of two policies."]


def test_the_report_and_the_comparison_link_to_the_page(
    workspace: Workspace, published: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHUNK_GRPO_REPORTS_URL", "http://reports")
    monkeypatch.setattr(_ui, "get_run_logger", lambda: type("Log", (), {"info": staticmethod(print)}))
    _ui.show_report(workspace, "runs/one/tiny")
    page = "http://reports/runs/one/tiny/report/index.html"
    assert capsys.readouterr().out == f"Report: {page}\n"
    assert f"[The report as a page]({page})" in published["report-tiny-lr-1"]
    text = _ui.show_comparison([workspace], ["runs/one/tiny"])
    assert text is not None and text == published["comparison-ablations"]
    assert "| tiny lr=1, chunk, tuned |" in text
    assert text.endswith(f"- Preset tiny, with `report.title=Ours`, commit `cccccccccccc`: [report]({page})\n")
