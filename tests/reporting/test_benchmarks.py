"""Scores on benchmark prompts: by category, with each benchmark's definition of the overall."""

import json
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.artifacts import read_table, table_from_rows, write_table
from chunk_grpo.reporting.content import SECTIONS
from chunk_grpo.reporting.page import render, summary
from chunk_grpo.reporting.tables import GENEVAL_CATEGORIES
from chunk_grpo.scorers.geneval.records import OFFICIAL_COUNTS
from chunk_grpo.scorers.wise.protocols import PROTOCOLS
from tests.reporting.conftest import PROMPTS, SCORERS, Run, images_of, write_run

MODEL = {"checkpoint": "a/model", "revision": None}
BASE_SCORERS: dict[str, Any] = {
    "geneval": {
        "kind": "geneval", "splits": ["things"], "batch_size": 4, "detector": MODEL, "classifier": MODEL,
        "dtype": "float32", "threshold": 0.3, "counting_threshold": 0.9, "max_objects": 16, "position_threshold": 0.1,
    },
    "wise": {
        "kind": "wise", "splits": ["knowledge"], "batch_size": 4, "protocol": "legacy", "judge": "a-judge",
        "instructions": None, "request": {}, "base_url": "http://127.0.0.1:1/v1", "api_key_variable": None,
        "concurrency": 1, "attempts": 1, "timeout_seconds": 1.0, "answers": ".answers",
    },
}  # fmt: skip
COCO = {"kind": "coco", "count": 12, "seed": 0}
Counts = dict[str, dict[str, int]]
A_FEW: Counts = {"things": dict.fromkeys(GENEVAL_CATEGORIES, 2), "knowledge": {"culture": 4, "time": 2}}
OF_WISE = {
    name: last - first
    for name, first, last in zip(
        PROTOCOLS["legacy"].last_ids,
        (0, *PROTOCOLS["legacy"].last_ids.values()),
        PROTOCOLS["legacy"].last_ids.values(),
        strict=False,
    )
}
OFFICIAL: Counts = {"things": dict(OFFICIAL_COUNTS), "knowledge": OF_WISE}


def value(policy: str, category: str, number: int) -> float:
    """The base: 0.5 of single objects, 0 of all else; knowledge 0.2 of culture, 0.5 of time. Others 0.25 more."""
    base = {"single_object": 0.25 + number % 2 / 2, "culture": 0.2, "time": 0.5}.get(category, 0.0)
    return base + (0.0 if policy == "base" else 0.25)


def add_benchmarks(run: Run, counts: Counts, things: dict[str, Any], original: str | None) -> None:
    """A split in GenEval's format and one in WISE's, with scores."""
    prompts = read_table(run.root / PROMPTS, "prompts").to_pylist()
    more = [
        {"prompt_id": f"{split}-{category}-{n}", "split": split, "prompt": f"{category} {n}"} | {"category": category}
        for split, of_category in counts.items()
        for category, count in of_category.items()
        for n in range(count)
    ]
    ids = iter(range(1, 1001))
    for row in more:
        row["metadata"] = json.dumps({"wise_id": next(ids)} if row["split"] == "knowledge" else {})
    write_table(table_from_rows(prompts + more, "prompts"), run.root / PROMPTS, "prompts")

    def change(params: dict[str, Any]) -> None:
        params["scorers"] |= BASE_SCORERS
        params["scorers"]["wise"] = BASE_SCORERS["wise"] | {"instructions": original}
        params["prompts"]["benchmarks"] = {
            "things": things,
            "knowledge": {"kind": "wise", "version": "legacy", "paths": ["w.json"], "rewritten": ["r.json"]}
            | {"missing_ids": "report", "count": None},
        }

    run.change_params(change)
    for scorer, split in (("geneval", "things"), ("wise", "knowledge")):
        for policy in ("base", *json.loads(run.params.read_text())["variants"]):
            rows = [
                {"policy": policy, "mode": mode, "train_seed": seed, "prompt_id": p["prompt_id"], "sample": 0}
                | {"scorer": scorer, "metric": "score"}
                | {"value": value(policy, p["category"], int(p["prompt_id"].rsplit("-", 1)[1]))}
                for mode, seed in sorted(images_of(policy))
                for p in more
                if p["split"] == split
            ]
            spec = {"name": f"{scorer}/a-model", "version": 3, "spec_hash": "0123456789abcdef"}
            target = run.root / "scores" / policy / f"{scorer}.parquet"
            write_table(table_from_rows(rows, "scores"), target, "scores", {"chunk_grpo.scorer": json.dumps(spec)})


def build(run: Run) -> tuple[str, dict[str, Any]]:
    content = run.content()
    return render("report.md.j2", content, SECTIONS), summary(content)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Prompts of this package in GenEval's format, and six of WISE's."""
    run = write_run(tmp_path_factory.mktemp("few"), 2, 1, 16)
    add_benchmarks(run, A_FEW, COCO, None)
    return build(run)


def row_of(markdown: str, title: str, head: str) -> list[str]:
    """The cells of a row of the first table below a title."""
    below = markdown[markdown.index(title) :].splitlines()
    line = next(line for line in below if line.startswith(f"| {head} |"))
    return [cell.strip() for cell in line.strip("| ").split("|")][1:]


def test_geneval_has_its_six_tags_and_their_unweighted_mean(few: tuple[str, dict[str, Any]]) -> None:
    markdown, summary = few
    title = "*geneval on the split things"
    heads = row_of(markdown, title, "policy")
    assert heads[:2] == ["Single object (2)", "Two objects (2)"]
    assert heads[-1] == "Overall"
    assert row_of(markdown, title, "base") == ["0.50", *["0.00"] * 5, "0.083"]  # 0.5 / 6
    assert row_of(markdown, title, "chunk, tuned")[-1].startswith("0.333<br>+0.250")
    assert summary["chunk"]["tuned"]["geneval_things_overall"]["difference"] == pytest.approx(0.25)


def test_a_part_of_wise_has_no_overall_but_a_mean_of_its_prompts(few: tuple[str, dict[str, Any]]) -> None:
    """(4 * 0.2 + 2 * 0.5) / 6 = 0.3, where the mean of the two categories would be 0.35."""
    markdown, summary = few
    title = "*wise on the split knowledge"
    assert row_of(markdown, title, "policy") == ["Cultural (4)", "Time (2)", "Mean of 6 prompts"]
    assert row_of(markdown, title, "base") == ["0.20", "0.50", "0.300"]
    assert row_of(markdown, title, "chunk, tuned")[-1].startswith("0.550<br>+0.250")
    assert "6 of WISE’s 1,000 prompts" in markdown and "not WISE’s Overall" in markdown
    assert summary["chunk"]["tuned"]["wise_knowledge_mean"]["difference"] == pytest.approx(0.25)
    assert "wise_knowledge_overall" not in summary["chunk"]["tuned"]


def test_other_prompts_and_a_part_of_them_leave_the_benchmarks_to_be_run(few: tuple[str, dict[str, Any]]) -> None:
    markdown, _ = few
    (told,) = [line for line in markdown.splitlines() if line.startswith("- The paper’s benchmarks")]
    assert "GenEval (things:" in told and "WISE (knowledge: 6 of its 1,000 prompts" in told
    assert "Not GenEval: 12 prompts" in markdown


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All prompts of both benchmarks, judged as published; read only."""
    run = write_run(tmp_path_factory.mktemp("official"), 2, 1, 16, ("chunk",))
    add_benchmarks(run, OFFICIAL, {"kind": "geneval", "path": "e.jsonl", "count": None}, "gpt_eval.py")
    run.change_params(lambda params: params["scorers"]["wise"].update(judge="gpt-4o-2024-05-13"))
    return run


def test_full_benchmark_reports_overall_score(official: Run) -> None:
    """WISE's Overall by its weights: 0.4 * 0.2 + 0.167 * 0.5 = 0.1635."""
    markdown, summary = build(official)
    title = "*wise on the split knowledge"
    heads = ["Cultural (400)", "Time (167)", "Space (133)", "Biology (100)", "Physics (100)", "Chemistry (100)"]
    assert row_of(markdown, title, "policy") == [*heads, "Overall"]
    assert row_of(markdown, title, "base") == ["0.20", "0.50", *["0.00"] * 4, "0.164"]
    assert "Not GenEval" not in markdown
    assert summary["chunk"]["tuned"]["wise_knowledge_overall"]["difference"] == pytest.approx(0.25)
    differs = "GenEval (things: another detector, images per prompt: 1, not 4). Tables"
    assert f"The paper’s benchmarks: {differs}" in markdown


def test_wise_with_refused_image_has_no_overall_score(official: Run, tmp_path: Path) -> None:
    """All else is official. Culture without one of its 400: (399 * 0.2 + 167 * 0.5) / 999 = 0.1635."""
    refused = official.copy(tmp_path)
    path = refused.root / "scores/chunk/wise.parquet"  # one image of one training seed and mode
    rows = read_table(path, "scores").to_pylist()
    row = next(row for row in rows if row["prompt_id"] == "knowledge-culture-7")
    row |= {"value": None, "refusal": "I cannot assist with that"}
    write_table(table_from_rows(rows, "scores"), path, "scores", {"chunk_grpo.scorer": "{}"})
    markdown, summary = build(refused)
    title = "*wise on the split knowledge"
    heads = row_of(markdown, title, "policy")
    assert (heads[0], heads[-1]) == ("Cultural (399)", "Mean of 999 prompts")
    assert row_of(markdown, title, "base")[-1] == "0.163"
    assert "not WISE’s Overall" in markdown
    assert "wise_knowledge_overall" not in summary["chunk"]["tuned"]
    assert ", WISE (knowledge: images refused and left out: 1)." in markdown
    assert "- Images of the split knowledge that wise refused: 1. (Prompt, sample) pairs left out" in markdown


def test_a_benchmark_of_other_prompts_stays_out_of_the_comparison(few: tuple[str, dict[str, Any]]) -> None:
    """Scores by category appear once: their plain mean would have another interval."""
    markdown, summary = few
    assert not {"geneval", "wise"} & set(summary["base"])
    splits = [split for split in ("wise", "things", "knowledge") if f"*Split {split}:" in markdown]
    assert splits == ["wise"]


def test_without_other_prompts_there_is_no_section_of_them(small: Run) -> None:
    add_benchmarks(small, A_FEW, COCO, None)

    def only_eval(params: dict[str, Any]) -> None:
        for name in SCORERS:
            params["scorers"][name]["splits"] = ["eval"]

    small.change_params(only_eval)
    markdown, _ = build(small)
    assert "Other prompts" not in markdown
    assert "none was scored" not in markdown


def test_each_scorer_is_named_with_its_metric_and_scale(few: tuple[str, dict[str, Any]]) -> None:
    markdown, _ = few
    title = "## What was run"
    identity = ["3", "0123456789abcdef"]
    assert row_of(markdown, title, "scorer")[:2] == ["metric", "scale, higher is better"]
    assert row_of(markdown, title, "geneval") == ["geneval/a-model", "1: right, 0: not", *identity, "things"]
    assert row_of(markdown, title, "wise") == ["wise/a-model", "WiScore, 0 to 1", *identity, "knowledge"]
    assert row_of(markdown, title, "shapes-exact")[:2] == ["not recorded", "1: right, 0: not"]
