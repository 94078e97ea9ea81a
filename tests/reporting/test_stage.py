"""The report stage on a synthetic run: files, page, determinism, and errors about missing input."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Protocol

import pyarrow.compute as pc
import pytest

from chunk_grpo.artifacts import read_table, table_from_rows, write_table
from stages import report
from stages._stage import run_stage

from .conftest import plan_rows

FILES = {
    *("index.html", "report.md", "summary.json"),
    *("differences.png", "grid.png", "profile.png", "curves.png", "training.png"),
    *(f"plots/{name}.csv" for name in ("chunk_draws", "differences", "how_trained", "l1_profile", "pairs")),
    *(f"plots/{name}.csv" for name in ("reward_curves", "training", "watched")),
}


class Run(Protocol):
    root: Path

    @property
    def options(self) -> list[str]: ...


class Page(HTMLParser):
    """Checks nesting, ids and alternative texts while it reads."""

    VOID = ("meta", "img", "link", "br", "path", "use", "rect")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        found = dict(attrs)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag == "img":
            assert found.get("alt"), "an image without alternative text"
        if tag == "svg":
            assert found.get("aria-label"), "a figure without label"

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def build(run: Run) -> dict[str, bytes]:
    assert run_stage(report.main, report.Arguments, run.options) == 0
    folder = run.root / "report"
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_files_are_complete_and_the_same_again(run: Run) -> None:
    first = build(run)
    assert set(first) == FILES
    assert build(run) == first


def test_the_page_is_self_contained_and_well_formed(run: Run) -> None:
    html = build(run)["index.html"].decode()
    page = Page()
    page.feed(html)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert page.headings[0] == "The training reward rises for dance and chunk."
    assert page.headings[1:] == [
        "The same prompts and seeds",
        "How fast the image changes, step by step",
        "Training",
        "Scores on held-out prompts",
        "Scores by category",
        "Deviations and limits",
        "What was run",
    ]
    assert "<script" not in html
    assert not re.search(r'(src|href)="(?!data:|#)', html.replace('xlink:href="#', 'href="#'))
    assert "url(http" not in html
    assert "train@of-earlier-parameters" not in html
    assert html.count("<img") == 4 * 7


def test_the_page_names_variants_samples_and_durations(run: Run) -> None:
    files = build(run)
    html, markdown = files["index.html"].decode(), files["report.md"].decode()
    assert html.index("chunk objective, plan listed, selection weighted") < html.index("<nav")
    assert markdown.index("- chunk-ws: chunk objective, plan listed") < markdown.index("## Does it help?")
    assert re.search(r'<small title="seed 20\d\d">sample 0</small>', html)
    assert "14\xa0min\xa058\xa0s" in html.split("<nav")[0]  # seven stages: 7 x 3.2 s + 41.7 s x 21
    assert "3 training seeds each" in html and "3 training seeds per variant" in markdown
    assert html.index('<section id="limits">') < html.index('<section id="run">')


def test_equal_plans_are_shown_once(run: Run) -> None:
    table = table_from_rows(plan_rows("guided", (2, 3, 4, 7)), "chunk_plan")
    write_table(table, run.root / "chunks" / "guided.parquet", "chunk_plan")
    files = build(run)
    assert "The plan “guided”, computed from the profile, is the same." in files["index.html"].decode()
    assert files["report.md"].decode().count("| chunk | size |") == 1


def test_markdown_links_its_pictures(run: Run) -> None:
    files = build(run)
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", files["report.md"].decode())
    assert sorted(pictures) == sorted(name for name in files if name.endswith(".png"))


def test_summary_holds_what_the_page_says(run: Run) -> None:
    found = json.loads(build(run)["summary.json"])
    assert found["prompts"] == 48
    assert found["train_seeds"] == 3
    chunk = found["chunk"]["tuned"]["training_reward"]
    assert chunk["low"] > 0
    assert chunk["mean"] - chunk["difference"] == pytest.approx(found["base"]["training_reward"], abs=2e-6)
    by_hand = chunk["mean"] - 0.6 * found["chunk"]["tuned"]["shapes-vivid"]["mean"]
    assert by_hand == pytest.approx(found["chunk"]["tuned"]["shapes-graded"]["mean"], abs=2e-6)
    assert "shapes-exact_overall" in found["dance"]["hybrid"]


def test_prompts_and_titles_are_escaped(run: Run) -> None:
    path = run.root / "params.yaml"
    params = json.loads(path.read_text())
    params["report"]["title"] = "<b>bold</b>"
    path.write_text(json.dumps(params))
    html = build(run)["index.html"].decode()
    assert "<b>bold" not in html
    assert "&lt;b&gt;bold" in html


def test_without_wise_prompts_the_page_says_so(run: Run) -> None:
    for path in (run.root / "scores").glob("*/*.parquet"):
        table = read_table(path, "scores")
        write_table(table.filter(pc.starts_with(table["prompt_id"], "eval")), path, "scores")
    files = build(run)
    assert "Not scored in this run." in files["index.html"].decode()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("scores/chunk/shapes-vivid.parquet", "scores/chunk/shapes-vivid.parquet"),
        ("images/dance/images.parquet", "images/dance/images.parquet"),
        ("train/chunk-ws/metrics.parquet", "train/chunk-ws/metrics.parquet"),
        ("chunks/guided.parquet", "chunks/guided.parquet"),
    ],
)
def test_missing_file_is_named(run: Run, path: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run.root / path).unlink()
    assert run_stage(report.main, report.Arguments, run.options) == 3
    assert message in capsys.readouterr().err
    assert not (run.root / "report").exists()


@pytest.mark.parametrize(
    ("path", "column", "value", "messages"),
    [
        (
            "scores/chunk/shapes-vivid.parquet",
            "train_seed",
            1,
            ["shapes-vivid.parquet", "policy=chunk mode=tuned train_seed=1"],
        ),
        (
            "scores/base/shapes-exact.parquet",
            "prompt_id",
            "eval-005",
            ["prompt_id=eval-005 (split eval)"],
        ),
        (
            "train/chunk/metrics.parquet",
            "metric",
            "grad_norm",
            ["train/chunk/metrics.parquet: no row with metric=grad_norm"],
        ),
    ],
    ids=["training seed", "unscored prompt of the base", "required metric"],
)
def test_missing_rows_are_named(
    run: Run,
    path: str,
    column: str,
    value: str | int,
    messages: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    schema = "train_metrics" if path.startswith("train/") else "scores"
    table = read_table(run.root / path, schema)
    write_table(table.filter(pc.not_equal(table[column], value)), run.root / path, schema)
    assert run_stage(report.main, report.Arguments, run.options) == 3
    told = capsys.readouterr().err
    assert all(message in told for message in messages)


def test_artifacts_of_earlier_versions_lack_what_is_optional(run: Run) -> None:
    files = build(run)  # these metrics are what the first version wrote
    html = files["index.html"].decode()
    assert "How they trained" in html
    assert not any(text in html for text in ("being hacked", "drawn and clipped", "Plans recomputed", ">KL<"))
    assert files["plots/chunk_draws.csv"].decode() == "variant,chunk,draws,share,clip_fraction\n"
