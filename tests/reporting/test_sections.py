"""Sections of an unfinished run: when they appear, and that they are those of the report."""

import base64
import io
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.config import load_params
from chunk_grpo.errors import ConfigError
from chunk_grpo.reporting import sections
from chunk_grpo.reporting.content import Content
from chunk_grpo.reporting.inputs import read_evidence, settings_from
from chunk_grpo.reporting.markdown import LARGEST, Section, embedded, escaped, reduced, report, slug
from chunk_grpo.reporting.panels import panel_figures
from chunk_grpo.reporting.sections import sections_after

from .conftest import PROFILE, PROMPTS, SCORERS, SEEDS, VARIANTS, Run

OUTPUTS = {
    "prepare_prompts": PROMPTS,
    "profile_l1": PROFILE,
    "chunk_boundaries": "chunks",
    "generate_base": "images/base",
    **{f"train@{v}-{s}": f"train/{v}/seed-{s}" for v in VARIANTS for s in SEEDS},
    **{f"generate@{v}-{s}": f"images/{v}/seed-{s}" for v in VARIANTS for s in SEEDS},
    **{f"score_base@{s}": f"scores/base/{s}.parquet" for s in SCORERS},
    **{f"score@{v}-{s}": f"scores/{v}/{s}.parquet" for v in VARIANTS for s in SCORERS},
}
"""Stage to its output in artifacts/."""


class Workspace:
    """A workspace that contains only params.yaml and manifests at first."""

    def __init__(self, root: Path, done: Run) -> None:
        self.root, self._done = root, done.root
        shutil.copytree(done.root / "runs", root / "artifacts" / "runs")
        shutil.copy(done.params, root)

    def end(self, *stages: str) -> None:
        """Let stages end."""
        for stage in stages:
            source, place = self._done / OUTPUTS[stage], self.root / "artifacts" / OUTPUTS[stage]
            place.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, place)

    def after(self, *stages: str) -> dict[str, str]:
        """Let stages end: what their sections show, by key."""
        self.end(*stages)
        return {section.key: section.markdown for section in sections_after(stages, self.root)}


@pytest.fixture
def workspace(tmp_path: Path, finished: Run) -> Workspace:
    return Workspace(tmp_path / "workspace", finished)


def of_variant(kind: str, variant: str) -> list[str]:
    return [
        stage for stage in OUTPUTS if stage.startswith(f"{kind}@{variant}-") and OUTPUTS[stage].split("/")[1] == variant
    ]


def pictures(markdown: str) -> list[Image.Image]:
    """The pictures of a section, in order."""
    found = re.findall(r"\]\(data:image/(?:png|jpeg);base64,([^)]*)\)", markdown)
    return [Image.open(io.BytesIO(base64.b64decode(content))) for content in found]


def plain(markdown: str) -> str:
    """Markdown without the content and the names of its pictures."""
    return re.sub(r"\]\([^)]*\)", "]", markdown).strip()


def test_a_section_appears_after_each_stage_that_it_shows(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "plot_pictures", lambda content: {})  # drawing takes seconds
    assert workspace.after() == {}
    assert workspace.after("prepare_prompts", "profile_l1") == {}
    assert [*workspace.after("chunk_boundaries")] == ["profile"]
    training = workspace.after("train@chunk-0")
    assert [*training] == ["training"] and "Not trained yet: dance, chunk-ws." in training["training"]
    assert workspace.after(*of_variant("generate", "chunk")) == {}
    images = workspace.after("generate_base")
    assert [*images] == ["images"] and "Not drawn yet: dance, chunk-ws." in images["images"]
    assert workspace.after(*(f"score_base@{s}" for s in SCORERS)) == {}
    first, second, last = of_variant("score", "chunk")
    assert workspace.after(first, second) == {}
    scores = workspace.after(last)
    assert [*scores] == ["answer", "scores"]
    assert all("Not scored yet: dance, chunk-ws." in text for text in scores.values())
    rows = [
        line.split(" | ")[0] for line in scores["scores"].partition("*Policies")[0].splitlines()[2:] if line[:1] == "|"
    ]
    assert rows[2:5] == ["| base", "| chunk, tuned", "| chunk, hybrid"]
    assert [*workspace.after("generate@dance-0", "train@dance-0")] == ["training", "images"]
    assert workspace.after(of_variant("score", "dance")[0]) == {}  # as before


def test_sections_of_a_finished_run_are_those_of_its_report(workspace: Workspace, files: dict[str, bytes]) -> None:
    found = workspace.after(*OUTPUTS)
    assert [*found] == ["profile", "training", "images", "answer", "scores"]
    text = plain(files["report.md"].decode())
    for key, markdown in found.items():
        shown = plain(markdown).replace("the report gives the scales", "a table below gives the scales")
        assert shown.startswith("## ") and shown in text, key
        assert len(markdown) < 700_000 and len(pictures(markdown)) == markdown.count("![")
    headings = re.findall("^## .*", text, re.M)
    assert [
        plain(found[key]).splitlines()[0] for key in ("answer", "images", "profile", "training", "scores")
    ] == headings[:5]
    assert workspace.after() == {}


def test_colours_are_those_of_the_finished_run(workspace: Workspace) -> None:
    """They depend on the variants by which a plot is drawn."""
    workspace.end(*(stage for stage in OUTPUTS if "@dance-" not in stage))
    settings = settings_from(load_params(workspace.root / "params.yaml"))
    content = Content(read_evidence(Layout.below(workspace.root), settings, partial=True), settings)
    assert content.scored.variants == ("chunk", "chunk-ws")
    draws = [draw for figure in panel_figures(content).values() for draw, _ in figure.panels]
    assert len(draws) > 5 and all(draw.keywords["variants"] == VARIANTS for draw in draws)  # type: ignore[attr-defined]


def test_another_pipelines_workspace_has_none(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("text: hello\n")
    assert sections_after(["train@a", "report"], tmp_path) == []


def test_invalid_params_are_reported_if_a_section_is_due(workspace: Workspace) -> None:
    workspace.end("prepare_prompts", "profile_l1", "chunk_boundaries")
    (workspace.root / "params.yaml").write_text("text: hello\n")
    with pytest.raises(ConfigError, match=r"params\.yaml"):
        sections_after(["chunk_boundaries"], workspace.root)


def test_large_pictures_are_reduced_until_they_fit() -> None:
    """Images of noise hardly compress."""
    out, pixels = io.BytesIO(), np.random.default_rng(0).integers(0, 255, (1800, 1800, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "PNG")
    found = reduced(out.getvalue())
    assert len(found) <= LARGEST and Image.open(io.BytesIO(found)).size == (900, 900)
    assert reduced(found) is found


def test_the_reports_pictures_go_into_the_text_and_other_addresses_stay(tmp_path: Path) -> None:
    assert report(tmp_path, None) == []
    (tmp_path / "report.md").write_text(r"![a \[1\]](x.png) ![b](https://e.org/b.png) [c](plots/c.csv)")
    (tmp_path / "x.png").write_bytes(b"\x89PNG")
    content = base64.b64encode(b"\x89PNG").decode()
    uri = f"data:image/png;base64,{content}"
    text = rf"![a \[1\]]({uri}) ![b](https://e.org/b.png) [c](plots/c.csv)"
    assert report(tmp_path, None) == [Section("report", "The report", text)]
    (found,) = report(tmp_path, "https://e.org/page")
    assert found.markdown == f"[The report as a page](https://e.org/page)\n\n{text}"
    assert embedded("![a](../x.png)", {"x.png": b""}) == "![a](../x.png)"


def test_prompts_are_shown_as_they_are() -> None:
    text = "a <b>bold</b> | *cat*\nwith_an [x] & `y`"
    assert escaped(text) == r"a &lt;b&gt;bold&lt;/b&gt; \| \*cat\* with_an \[x\] &amp; \`y\`"
    assert escaped("_a_ b_c") == r"\_a\_ b_c"
    assert slug("Chunk_WS, v2.1") == "chunk-ws-v2-1"
