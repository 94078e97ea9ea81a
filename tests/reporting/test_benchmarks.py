"""Scores of prompts that a benchmark brings along: by category, with each benchmark's own overall."""

import json
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.artifacts import read_table, table_from_rows, write_table
from chunk_grpo.reporting.tables import GENEVAL_CATEGORIES
from stages import report
from stages._stage import run_stage
from tests.reporting.conftest import Run

MODEL = {"checkpoint": "a/model", "revision": None}
BASE_SCORERS: dict[str, Any] = {
    "geneval": {
        "kind": "geneval",
        "splits": ["things"],
        "batch_size": 4,
        "detector": MODEL,
        "classifier": MODEL,
        "dtype": "float32",
        "threshold": 0.3,
        "counting_threshold": 0.9,
        "max_objects": 16,
        "position_threshold": 0.1,
    },
    "wise": {
        "kind": "wise",
        "splits": ["knowledge"],
        "batch_size": 4,
        "protocol": "legacy",
        "judge": "a-judge",
        "instructions": None,
        "request": {},
        "base_url": "http://127.0.0.1:1/v1",
        "api_key_variable": None,
        "concurrency": 1,
        "attempts": 1,
        "timeout_seconds": 1.0,
        "answers": ".answers",
    },
}
OF_CATEGORY = {"things": dict.fromkeys(GENEVAL_CATEGORIES, 2), "knowledge": {"culture": 4, "time": 2}}


def value(policy: str, category: str, number: int) -> float:
    """The base: 0.5 of single objects, 0 of all else; knowledge 0.2 of culture, 0.5 of time. Others 0.25 more."""
    base = {"single_object": number / 1.0, "culture": 0.2, "time": 0.5}.get(category, 0.0)
    return base + (0.0 if policy == "base" else 0.25)


@pytest.fixture
def with_benchmarks(run: Run) -> Run:
    """The synthetic run with a split of GenEval's form and one of WISE's."""
    prompts = read_table(run.root / "prompts.parquet", "prompts").to_pylist()
    more = [
        {"prompt_id": f"{split}-{category}-{n}", "split": split, "prompt": f"{category} {n}"}
        | {"category": category, "metadata": "{}"}
        for split, counts in OF_CATEGORY.items()
        for category, count in counts.items()
        for n in range(count)
    ]
    write_table(table_from_rows(prompts + more, "prompts"), run.root / "prompts.parquet", "prompts")
    path = run.root / "params.yaml"
    params = json.loads(path.read_text())
    params["scorers"] |= BASE_SCORERS
    params["prompts"]["benchmarks"] = {
        "things": {"kind": "coco", "count": 12, "seed": 0},
        "knowledge": {"kind": "wise", "version": "legacy", "paths": ["w.json"], "rewritten": []}
        | {"missing_ids": "report", "count": None},
    }
    path.write_text(json.dumps(params))
    for scorer, split in (("geneval", "things"), ("wise", "knowledge")):
        for policy in ("base", *params["variants"]):
            shown = read_table(run.root / "images" / policy / "images.parquet", "images")
            modes = {
                (row["mode"], row["train_seed"]) for row in shown.select(["mode", "train_seed"]).to_pylist()
            }
            rows = [
                {"policy": policy, "mode": mode, "train_seed": seed, "prompt_id": p["prompt_id"], "sample": 0}
                | {"scorer": scorer, "metric": "score"}
                | {"value": value(policy, p["category"], int(p["prompt_id"].rsplit("-", 1)[1]))}
                for mode, seed in sorted(modes)
                for p in more
                if p["split"] == split
            ]
            spec = {"name": f"{scorer}/a-model", "version": 3, "spec_hash": "0123456789abcdef"}
            target = run.root / "scores" / policy / f"{scorer}.parquet"
            write_table(
                table_from_rows(rows, "scores"), target, "scores", {"chunk_grpo.scorer": json.dumps(spec)}
            )
    return run


def build(run: Run) -> tuple[str, dict[str, Any]]:
    assert run_stage(report.main, report.Arguments, run.options) == 0
    folder = Path(run.root, "report")
    return (folder / "report.md").read_text(), json.loads((folder / "summary.json").read_text())


def row_of(markdown: str, title: str, head: str) -> list[str]:
    """The cells of a row of the first table below a title."""
    below = markdown[markdown.index(title) :].splitlines()
    line = next(line for line in below if line.startswith(f"| {head} |"))
    return [cell.strip() for cell in line.strip("| ").split("|")][1:]


def test_geneval_has_its_six_tags_and_their_unweighted_mean(with_benchmarks: Run) -> None:
    markdown, summary = build(with_benchmarks)
    title = "## geneval by category, split things"
    heads = row_of(markdown, title, "policy")
    assert heads[:2] == ["Single object (2)", "Two objects (2)"]
    assert heads[-1] == "Overall"
    assert row_of(markdown, title, "base") == ["0.50", *["0.00"] * 5, "0.083"]  # 0.5 / 6
    assert row_of(markdown, title, "chunk, tuned")[-1].startswith("0.333<br>+0.250")
    assert "Overall: unweighted mean of the six categories." in markdown
    assert summary["chunk"]["tuned"]["geneval_things_overall"]["difference"] == pytest.approx(0.25)


def test_wises_overall_weighs_a_category_by_its_prompts(with_benchmarks: Run) -> None:
    """(4 * 0.2 + 2 * 0.5) / 6 = 0.3, where the mean of the two categories would be 0.35."""
    markdown, summary = build(with_benchmarks)
    title = "## wise by category, split knowledge"
    assert row_of(markdown, title, "policy") == ["culture (4)", "time (2)", "Overall"]
    assert row_of(markdown, title, "base") == ["0.20", "0.50", "0.300"]
    assert row_of(markdown, title, "chunk, tuned")[-1].startswith("0.550<br>+0.250")
    assert "Overall: mean of all prompts" in markdown
    assert summary["chunk"]["tuned"]["wise_knowledge_overall"]["difference"] == pytest.approx(0.25)


def test_a_benchmark_of_other_prompts_stays_out_of_the_comparison(with_benchmarks: Run) -> None:
    markdown, summary = build(with_benchmarks)
    assert not {"geneval", "wise"} & set(summary["base"])
    others = markdown[markdown.index("## Other prompts") :]
    assert [split for split in ("wise", "things", "knowledge") if f"Split {split}:" in others] == [
        "wise",
        "things",
        "knowledge",
    ]


def test_each_scorer_is_named_with_what_measures(with_benchmarks: Run) -> None:
    markdown, _ = build(with_benchmarks)
    title = "## What was run"
    assert row_of(markdown, title, "geneval") == ["geneval/a-model", "3", "0123456789abcdef", "things"]
    assert row_of(markdown, title, "shapes-exact")[0] == "not recorded"
    assert "The paper’s benchmarks" not in markdown
