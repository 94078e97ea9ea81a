"""The report stage on a synthetic run: files, page, determinism, and errors about missing input."""

import dataclasses
import json
import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pyarrow.compute as pc
import pytest
from markdown_it import MarkdownIt

from chunk_grpo.artifacts import read_table, table_from_rows, write_table
from chunk_grpo.config.variant_rules import RESERVED_VARIANTS
from chunk_grpo.reporting.content import ONLY_TRAINED, lines_text
from stages import report
from stages._stage import run_stage

from .conftest import PROMPTS, VARIANTS, Run, plan_rows

FILES = {
    *("index.html", "report.md", "summary.json", "metrics.json"),
    *("differences.png", "grid.png", "grid-more.png", "profile.png", "curves.png", "training.png"),
    *("won.png", "lost.png"),
    *(f"plots/{name}.csv" for name in ("chunk_draws", "differences", "how_trained", "l1_profile", "pairs")),
    *(f"plots/{name}.csv" for name in ("reward_curves", "step_clipping", "training", "watched")),
}


class Page(HTMLParser):
    """Checks nesting, ids and alternative texts while it reads."""

    VOID = ("meta", "img", "link", "br", "path", "use", "rect")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        found = dict(attrs)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        self.links += [str(found["href"])[1:]] if tag == "a" else []
        if tag == "img":
            assert found.get("alt"), "an image without alternative text"
        if tag == "svg":
            assert found.get("aria-label"), "a figure without label"

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_report_files_are_complete_and_reproducible(files: dict[str, bytes], run: Run) -> None:
    assert set(files) == FILES
    assert run.build() == files


def test_the_page_is_self_contained_and_well_formed(files: dict[str, bytes]) -> None:
    html = files["index.html"].decode()
    page = Page()
    page.feed(html)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {"images", "profile", "training", "scores", "categories", "limits", "run", "scorers"} <= set(page.links)
    assert set(page.links) <= set(page.ids)
    assert "<script" not in html
    assert not re.search(r'(src|href)="(?!data:|#)', html.replace('xlink:href="#', 'href="#'))
    assert "url(http" not in html
    assert "train@of-earlier-parameters" not in html
    grid, flips = 4 * 7, 2 * len(re.findall(r"<li><span>", html))
    assert html.count("<img") == grid + flips


def test_page_and_markdown_have_the_same_parts(files: dict[str, bytes]) -> None:
    html, markdown = files["index.html"].decode(), files["report.md"].decode()
    titles = [unescape(title) for title in re.findall(r"<h[123]>(.*?)</h", html)]
    assert re.findall(r"^#+ (?:Does it help\? )?(.*)", markdown, re.MULTILINE) == titles
    assert html.count("<table class=") == len(re.findall(r"^\|---", markdown, re.MULTILINE))
    assert html.count("<summary>") == markdown.count("<summary>")


def test_markdown_links_its_pictures(files: dict[str, bytes]) -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", files["report.md"].decode())
    assert sorted(pictures) == sorted(name for name in files if name.endswith(".png"))


def test_curves_say_on_which_prompts_and_steps_they_are(files: dict[str, bytes]) -> None:
    text = files["report.md"].decode()
    assert "the first 48 held-out prompts, 2 images each" in text
    assert "Both take the 17 steps of training." in text
    assert "all held-out prompts in 50 steps (ODE)" in text


def test_summary_holds_what_the_page_says(files: dict[str, bytes]) -> None:
    found = json.loads(files["summary.json"])
    assert found["prompts"] == 48
    assert found["train_seeds"] == 3
    chunk = found["chunk"]["tuned"]["training_reward"]
    assert chunk["low"] > 0
    assert chunk["mean"] - chunk["difference"] == pytest.approx(found["base"]["training_reward"], abs=2e-6)
    by_hand = chunk["mean"] - 0.6 * found["chunk"]["tuned"]["shapes-vivid"]["mean"]
    assert by_hand == pytest.approx(found["chunk"]["tuned"]["shapes-graded"]["mean"], abs=2e-6)
    assert "shapes-exact_overall" in found["dance"]["hybrid"]
    others = {key for key, value in found.items() if not (isinstance(value, dict) and "tuned" in value)}
    assert others == {*RESERVED_VARIANTS}
    metrics = json.loads(files["metrics.json"])
    assert metrics.pop("base") == found["base"]["training_reward"]
    assert metrics == {
        variant: {mode: found[variant][mode]["training_reward"]["mean"] for mode in ("tuned", "hybrid")}
        for variant in VARIANTS
    }


HOSTILE = (
    "<svg onload=alert(1)> | ![x](http://evil.example/p.png)",
    "[x](javascript:alert(1)) `c` ~~d~~ **e**\n# f",
    "```\n<img src=x onerror=alert(1)>\n~~~ ![x](../../../secret.png) --> <!-- &lt;script&gt;",
)


class Active(HTMLParser):
    """Collects what Markdown made of a text: elements and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(str(value) for name, value in attrs if name in ("src", "href"))}


@pytest.mark.parametrize("turn", range(3))
def test_texts_of_users_are_texts_in_page_and_markdown(small: Run, turn: int) -> None:
    """Titles, categories, paths and settings come from users and from prompt files."""
    texts = (*HOSTILE[turn:], *HOSTILE[:turn])
    rows = read_table(small.root / PROMPTS, "prompts").to_pylist()
    for row in rows:
        row["category"] = texts[0] if row["category"] == "colors" else row["category"]
    write_table(table_from_rows(rows, "prompts"), small.root / PROMPTS, "prompts")

    def change(params: dict[str, Any]) -> None:
        params["report"]["title"], params["composed_from"] = texts[1:]

    small.change_params(change)
    html, page, markdown = small.page(), Page(), Active()
    page.feed(html)
    assert page.open == []
    markdown.feed(MarkdownIt("gfm-like", {"linkify": False}).render(small.markdown()))
    known = {name for name in FILES if name.endswith(".png")}
    known |= {"details", "summary", "table", "thead", "tbody", "tr", "th", "td", "br", "h1", "h2", "h3", "p"}
    assert markdown.found <= known | {"ul", "li", "img", "pre", "code", "em", "strong"}
    assert html.count("Content-Security-Policy") == 1


def test_default_title_equal_plans_and_no_wise_prompts(small: Run) -> None:
    """The title names checkpoint and reward; equal plans are shown once; a benchmark without scores is named."""

    def change(params: dict[str, Any]) -> None:
        params["report"]["title"] = None
        params["model"] |= {"checkpoint": "somebody/their-flux", "revision": "0" * 40}

    small.change_params(change)
    plan = table_from_rows(plan_rows("guided", (2, 3, 4, 7)), "chunk_plan")
    write_table(plan, small.root / "chunks" / "guided.parquet", "chunk_plan")
    for path in (small.root / "scores").glob("*/*.parquet"):
        table = read_table(path, "scores")
        write_table(table.filter(pc.starts_with(table["prompt_id"], "eval")), path, "scores")
    report = small.markdown()
    assert report.startswith("# their-flux, trained for shapes-graded + shapes-vivid\n")
    assert report.count("| chunk | size |") == 1
    assert "Not scored in this run." in report


def test_a_run_of_ones_own_has_no_numbers_of_the_paper_and_a_caution(small: Run) -> None:
    """One scorer, which is the reward, on a file of prompts without categories."""

    def change(params: dict[str, Any]) -> None:
        shared = {"splits": ["eval"], "batch_size": 8, "version": 1}
        params["scorers"] = {"bright": {"kind": "external", "source": "a:b", "options": {}, **shared}}
        params["rewards"] = {"bright": 1.0}
        params["train"]["heldout"]["scorers"] = []
        params["prompts"] |= {"source": "file", "train_file": {"path": "mine.txt"}, "wise_count": 0}

    small.change_params(change)
    for path in (small.root / "scores").glob("*/shapes-vivid.parquet"):
        rows = [row | {"scorer": "bright"} for row in read_table(path, "scores").to_pylist()]
        write_table(table_from_rows(rows, "scores"), path.with_name("bright.parquet"), "scores")
    report, page = small.markdown(), small.page()
    assert "From the paper" not in report and "# Scores by category" not in report
    assert 'href="#categories"' not in page and "The paper’s benchmarks" not in report
    assert report.count(ONLY_TRAINED) == 1
    assert small.content().caution == ONLY_TRAINED


@pytest.mark.parametrize(
    "path",
    [
        "scores/chunk/shapes-vivid.parquet",
        "images/dance/seed-0/images.parquet",
        "train/chunk-ws/seed-1/metrics.parquet",
        "chunks/guided.parquet",
    ],
)
def test_missing_file_is_named(small: Run, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    (small.root / path).unlink()
    assert run_stage(report.main, report.Arguments, small.options) == 3
    assert path in capsys.readouterr().err
    assert not (small.root / "report").exists()


def test_report_omits_sections_missing_in_older_artifacts(files: dict[str, bytes]) -> None:
    html = files["index.html"].decode()  # these metrics are what the first version wrote
    assert "How they trained" in html
    assert not any(
        text in html
        for text in ("being hacked", "Chunks drawn", "Clipping by step", "Plans recomputed", "distance from the base<")
    )
    assert files["plots/chunk_draws.csv"].decode() == "variant,chunk,draws,share,clip_fraction\n"


def test_bands_are_named_for_what_they_are(files: dict[str, bytes], small: Run) -> None:
    """Below the curves of the reward and below the others; one seed has no band."""
    lines = "Lines: mean of 3 training seeds; bands: range of 3 seeds."
    assert files["report.md"].decode().count(lines) == 2
    content = small.content()
    alone = dataclasses.replace(content.settings, train_seeds=(0,))
    assert lines_text(alone) == "Lines: one training seed."
