"""Highlights of an unfinished run: when they appear, their inputs, and their agreement with the report."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from chunk_grpo.artifacts import table_from_rows, write_table
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.reporting import gallery
from chunk_grpo.reporting.evidence import Source
from chunk_grpo.reporting.highlight import Highlight, escaped, slug
from chunk_grpo.reporting.highlight import report as report_highlight
from chunk_grpo.reporting.highlight_parts import draw_plans
from chunk_grpo.reporting.highlights import Highlights
from chunk_grpo.reporting.series import chunks_of
from stages import report
from stages._stage import run_stage

from .conftest import SCORERS, VARIANTS, Run, image_rows, plan_rows, prompt_rows
from .unfinished import INPUTS, PLANS, Workspace, planned_run

LIMIT = 1_500_000
"""Number of characters in an artifact that a browser shows without delay."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A synthetic run whose report exists; read only."""
    made = planned_run(tmp_path_factory.mktemp("run"))
    assert run_stage(report.main, report.Arguments, made.options) == 0
    return made


@pytest.fixture
def workspace(tmp_path: Path, done: Run) -> Workspace:
    return Workspace(tmp_path / "workspace", done)


def made(workspace: Workspace) -> dict[str, Highlight]:
    return {highlight.key: highlight for highlight in Highlights(workspace.root).new()}


def table_lines(markdown: str) -> list[str]:
    return [line for line in markdown.splitlines() if line.startswith("| ")]


def pictures(markdown: str) -> list[Image.Image]:
    """The pictures of a page, in order."""
    found = re.findall(r"\]\(data:image/(?:png|jpeg);base64,([^)]*)\)", markdown)
    return [Image.open(io.BytesIO(base64.b64decode(content))) for content in found]


def test_highlight_appears_once_when_its_inputs_exist(workspace: Workspace) -> None:
    found = Highlights(workspace.root)

    def after(*stages: str) -> list[str]:
        workspace.finish(*stages)
        return [highlight.key for highlight in found.new()]

    assert after() == []
    assert after("prepare_prompts") == []
    assert after("profile_l1") == ["l1-profile"]
    assert after("chunk_boundaries") == ["l1-profile", "chunks"]
    assert after() == []
    assert after("train@chunk-0") == ["rewards"]
    assert after("generate@chunk-0") == []
    assert after("generate_base") == ["images"]
    assert after(*(f"score@base-{s}" for s in SCORERS)) == []
    assert after("score@chunk-shapes-exact", "score@chunk-shapes-graded") == []
    assert after("score@chunk-shapes-vivid") == ["scores"]
    assert after("train@dance-0", "generate@dance-0") == ["rewards", "images"]
    assert after() == []


def test_highlight_reappears_when_an_input_changes(workspace: Workspace, done: Run) -> None:
    workspace.finish("profile_l1", "chunk_boundaries")
    found = Highlights(workspace.root)
    before = {highlight.key: highlight for highlight in found.new()}
    table = table_from_rows(plan_rows("listed", (4, 4, 4, 4)), "chunk_plan")
    write_table(table, workspace.root / "artifacts" / "chunks" / "listed.parquet", "chunk_plan")
    after = {highlight.key: highlight for highlight in found.new()}
    assert after.keys() == before.keys() == {"l1-profile", "chunks"}
    assert after["l1-profile"] != before["l1-profile"]
    assert "### listed\n\nSizes: 2, 3, 4, 7." in before["chunks"].markdown
    assert "### listed\n\nSizes: 4, 4, 4, 4." in after["chunks"].markdown


def test_another_pipelines_workspace_has_none(tmp_path: Path) -> None:
    (tmp_path / "artifacts" / "report").mkdir(parents=True)
    (tmp_path / "params.yaml").write_text("text: hello\n")
    assert Highlights(tmp_path).new() == []


def test_invalid_params_are_reported_if_a_highlight_is_due(workspace: Workspace) -> None:
    workspace.finish("profile_l1")
    (workspace.root / "params.yaml").write_text("text: hello\n")
    with pytest.raises(ConfigError, match=r"params\.yaml"):
        Highlights(workspace.root).new()


def test_equal_inputs_give_equal_highlights(workspace: Workspace) -> None:
    workspace.finish(*INPUTS)
    assert made(workspace) == made(workspace)


def test_the_profile_is_drawn_over_the_chunks_of_every_plan(workspace: Workspace) -> None:
    workspace.finish("profile_l1")
    alone = made(workspace)["l1-profile"]
    assert "every plan" not in alone.markdown.split("![")[0]
    workspace.finish("chunk_boundaries")
    whole = made(workspace)["l1-profile"]
    assert "Shaded: the chunks of listed" in whole.markdown
    (one,), (two,) = pictures(alone.markdown), pictures(whole.markdown)
    assert two.height == 2 * one.height


def test_a_plans_boxes_are_its_chunks() -> None:
    axes = Figure().add_subplot()
    plans = {
        name: chunks_of(Source("x", table_from_rows(plan_rows(name, PLANS[name]), "chunk_plan")))
        for name in ("listed", "single")
    }
    draw_plans(axes, plans, last_step=16)
    boxes = [(patch.get_x(), patch.get_width(), round(patch.get_y() + 0.35)) for patch in axes.patches]  # type: ignore[attr-defined]
    assert boxes == [(-0.5, 2, 0), (1.5, 3, 0), (4.5, 4, 0), (8.5, 7, 0), (-0.5, 16, 1)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["listed", "single"]


def test_chunks_are_listed_with_steps_and_weights(workspace: Workspace) -> None:
    """Means of 0.7, 0.6, 0.5 and 0.4 over 0.5 give the weights; their sum is 4.4."""
    workspace.finish("profile_l1", "chunk_boundaries")
    found = dict(part.split("\n\n", 1) for part in made(workspace)["chunks"].markdown.split("\n### ")[1:])
    assert list(found) == list(PLANS)
    assert found["step"].startswith(f"Sizes: {', '.join('1' * 16)}. Trained by: dance.")
    assert found["guided"].startswith("Sizes: 2, 3, 5, 6. Trained by: no variant.")
    assert found["listed"].startswith("Sizes: 2, 3, 4, 7. Trained by: chunk, chunk-ws.")
    assert table_lines(found["listed"])[1:] == [
        "| 0 | 2 | 0–1 | 0.700 | 1.40 | 32% |",
        "| 1 | 3 | 2–4 | 0.600 | 1.20 | 27% |",
        "| 2 | 4 | 5–8 | 0.500 | 1.00 | 23% |",
        "| 3 | 7 | 9–15 | 0.400 | 0.80 | 18% |",
    ]


def test_highlight_scores_match_report(workspace: Workspace, done: Run) -> None:
    workspace.finish(*INPUTS)
    scores = made(workspace)["scores"]
    text = (done.root / "report" / "report.md").read_text()
    lines = table_lines(scores.markdown)
    assert len(lines) == 1 + 1 + 2 * len(VARIANTS)
    assert [line for line in lines if line.replace("<br>(", " (") not in text] == []
    sentence = scores.markdown.splitlines()[2]
    assert "95 % interval" in sentence and sentence in text
    assert scores.markdown.splitlines()[0].removeprefix("## ") in text


def test_rewards_and_scores_of_some_variants_name_the_others(workspace: Workspace) -> None:
    workspace.finish("prepare_prompts", "train@chunk-0", "score@dance-shapes-exact")
    workspace.finish(*(f"score@{p}-{s}" for p in ("base", "chunk") for s in SCORERS))
    rewards, scores = made(workspace).values()
    assert "Not trained yet: dance, chunk-ws." in rewards.markdown
    assert pictures(rewards.markdown)[0].width > 1000
    assert [line.split(" | ")[0] for line in table_lines(scores.markdown)[1:]] == [
        "| base",
        "| chunk, tuned",
        "| chunk, hybrid",
    ]
    assert "Not scored yet: dance, chunk-ws." in scores.markdown


def colour(policy: str, mode: str, train_seed: int, prompt: int, sample: int) -> tuple[int, int, int]:
    """A colour that is unique to each image."""
    return 40 * ("base", *VARIANTS).index(policy) + 5 * len(mode), 20 * (train_seed + 2), 2 * prompt + sample


def images_place(workspace: Workspace, policy: str) -> Path:
    """The table of the base's images, or of those of the first training seed."""
    folder = policy if policy == "base" else f"{policy}/seed-0"
    return workspace.root / "artifacts" / "images" / folder / "images.parquet"


def first_rows(policy: str, prompts: list[dict[str, object]]) -> list[dict[str, object]]:
    """Rows of the base's images, or of those of the first training seed."""
    return image_rows(policy, -1 if policy == "base" else 0, prompts, 16)


def coloured(policy: str, prompts: list[dict[str, object]]) -> list[dict[str, object]]:
    """Images of two samples, each of one colour, the later ones first."""
    rows = []
    for row in first_rows(policy, prompts):
        for sample in (1, 0):
            number = [prompt["prompt_id"] for prompt in prompts].index(row["prompt_id"])
            out = io.BytesIO()
            rgb = colour(policy, str(row["mode"]), int(str(row["train_seed"])), number, sample)
            Image.new("RGB", (32, 32), rgb).save(out, "PNG")
            image = {"bytes": out.getvalue(), "path": "x.png"}
            rows.append({**row, "sample": sample, "seed": 1000 * sample + number, "image": image})
    return rows[::-1]


def middle(grid: Image.Image, row: int, column: int) -> object:
    """Colour in the middle of an image of the grid."""
    x = gallery.GAP + column * (gallery.TILE + gallery.GAP) + gallery.TILE // 2
    y = (
        gallery.HEADER
        + row * (gallery.LABEL + gallery.TILE + gallery.GAP)
        + gallery.LABEL
        + gallery.TILE // 2
    )
    return grid.convert("RGB").getpixel((2 * x, 2 * y))


def test_a_row_of_the_grid_has_one_prompt_and_one_seed(workspace: Workspace) -> None:
    workspace.finish("prepare_prompts")
    prompts = prompt_rows(8)
    for policy in ("base", "chunk", "dance"):
        place = images_place(workspace, policy)
        write_table(table_from_rows(coloured(policy, prompts), "images"), place, "images")
    markdown = made(workspace)["images"].markdown
    assert "![Image grid: base, dance tuned, chunk tuned](" in markdown
    (grid,), listed = pictures(markdown), re.findall(r"^\d+\. (.*), seed (\d+)$", markdown, re.MULTILINE)
    assert len(listed) == 4  # report.grid_prompts
    for row, (prompt, seed) in enumerate(listed):
        number = int(seed)  # sample 0: the seed is the prompt's number
        assert prompt == prompts[number]["prompt"]
        assert [middle(grid, row, column) for column in range(3)] == [
            colour("base", "base", -1, number, 0),
            colour("dance", "tuned", 0, number, 0),
            colour("chunk", "tuned", 0, number, 0),
        ]
    assert "Not drawn yet: chunk-ws." in markdown


def test_the_grid_has_the_reports_prompts(workspace: Workspace, done: Run) -> None:
    workspace.finish(*INPUTS)
    grid = made(workspace)["images"]
    page = (done.root / "report" / "index.html").read_text().partition('id="images"')[2]
    captions = re.findall(r"^\d+\. (.*), seed", grid.markdown, re.MULTILINE)
    alts = re.findall(r'alt="([^"]*): base"', page)
    assert sorted(captions) == sorted(alts)


def test_images_of_other_seeds_are_not_set_side_by_side(workspace: Workspace) -> None:
    workspace.finish("prepare_prompts", "generate_base")
    rows = [{**row, "seed": 1} for row in first_rows("chunk", prompt_rows(8))]
    place = images_place(workspace, "chunk")
    write_table(table_from_rows(rows, "images"), place, "images")
    with pytest.raises(DataError, match="images are paired by seed"):
        Highlights(workspace.root).new()


def test_large_images_are_reduced_and_prompts_left_out_until_they_fit(workspace: Workspace) -> None:
    """Images of noise hardly compress."""
    workspace.finish("prepare_prompts")
    text = (workspace.root / "params.yaml").read_text()
    (workspace.root / "params.yaml").write_text(text.replace('"grid_prompts": 4', '"grid_prompts": 24'))
    generator, prompts = np.random.default_rng(0), prompt_rows(4)
    for policy in ("base", *VARIANTS):
        rows = []
        for row in first_rows(policy, prompts):
            if row["mode"] != "hybrid":
                out = io.BytesIO()
                pixels = generator.integers(0, 255, (400, 400, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(out, "PNG")
                rows.append({**row, "image": {"bytes": out.getvalue(), "path": "x.png"}})
        place = images_place(workspace, policy)
        write_table(table_from_rows(rows, "images"), place, "images")
    place = workspace.root / "artifacts" / "prompts" / "evaluation.parquet"
    write_table(table_from_rows(prompts, "prompts"), place, "prompts")
    markdown = made(workspace)["images"].markdown
    assert len(markdown) < LIMIT
    assert 1 < len(re.findall(r", seed \d+$", markdown, re.MULTILINE)) < 24
    assert "data:image/jpeg" in markdown


def test_every_highlight_fits_into_one_artifact(workspace: Workspace) -> None:
    workspace.finish(*INPUTS)
    found = made(workspace)
    assert list(found) == ["l1-profile", "chunks", "rewards", "images", "scores"]
    for highlight in found.values():
        assert len(highlight.markdown) < 250_000
        assert len(pictures(highlight.markdown)) == highlight.markdown.count("![")
        assert re.fullmatch("[a-z0-9-]+", highlight.key)


def test_the_reports_pictures_go_into_the_text_and_other_addresses_stay(tmp_path: Path) -> None:
    assert report_highlight(tmp_path, None) == []
    (tmp_path / "report.md").write_text(r"![a \[1\]](x.png) ![b](https://e.org/b.png) [c](plots/c.csv)")
    (tmp_path / "x.png").write_bytes(b"\x89PNG")
    (found,) = report_highlight(tmp_path, "https://e.org/page")
    content = base64.b64encode(b"\x89PNG").decode()
    uri = f"data:image/png;base64,{content}"
    assert found.markdown == (
        "[The report as a page](https://e.org/page)\n\n"
        rf"![a \[1\]]({uri}) ![b](https://e.org/b.png) [c](plots/c.csv)"
    )


def test_prompts_are_shown_as_they_are() -> None:
    text = "a <b>bold</b> | *cat*\nwith_an [x] & `y`"
    assert escaped(text) == r"a &lt;b&gt;bold&lt;/b&gt; \| \*cat\* with_an \[x\] &amp; \`y\`"
    assert escaped("_a_ b_c") == r"\_a\_ b_c"
    assert slug("Chunk_WS, v2.1") == "chunk-ws-v2-1"
