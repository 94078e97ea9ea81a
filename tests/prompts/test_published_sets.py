"""Published sets of prompts load with the settings of docs/prompts.md.

PROMPT_SETS is a folder with the clones parti, T2I-CompBench, geneval, WISE and GCPO (for HPDv2.1's test prompts), and
DrawBench/DrawBench.csv.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from chunk_grpo.config.prompts import PromptsParams
from chunk_grpo.prompts.splits import Split, splits_of

pytestmark = pytest.mark.network

PAGE = Path(__file__).resolve().parents[2] / "docs" / "prompts.md"
WISE_FILES = "WISE_legacy/data/{}.json"
WISE_PARTS = ("cultural_common_sense", "natural_science", "spatio-temporal_reasoning")


def documented(name: str) -> dict[str, Any]:
    """Settings of a set in the table of the page."""
    (row,) = re.findall(rf"^\| {re.escape(name)} \| .*$", PAGE.read_text("utf-8"), re.MULTILINE)
    settings = re.search(r"`(\{.*?\})` \|", row)
    assert settings is not None
    section: dict[str, Any] = YAML(typ="safe").load(settings[1])
    return section


def sets_folder() -> Path:
    folder = Path(os.environ.get("PROMPT_SETS", ""))
    if not (folder / "parti").is_dir():
        pytest.fail(f"set PROMPT_SETS to a folder with the clones that {Path(__file__).name} names, got {folder}")
    return folder


def load(section: dict[str, Any]) -> Split:
    given = {"source": "coco", "train_count": 6, "eval_count": 6, "benchmarks": {"set": section}}
    made = {
        split.name: split for split in splits_of(PromptsParams.model_validate_json(json.dumps(given)), dict, (32, 32))
    }
    return made["set"]


@pytest.mark.parametrize(
    ("name", "file", "count"),
    [
        ("PartiPrompts", "parti/PartiPrompts.tsv", 1632),
        ("DrawBench", "DrawBench/DrawBench.csv", 200),
        ("HPDv2.1, test", "GCPO/test/test_prompts.csv", 400),
        *(
            ("T2I-CompBench", f"T2I-CompBench/examples/dataset/{part}_val.txt", 300)
            for part in ("3d_spatial", "color", "complex", "non_spatial", "numeracy", "shape", "spatial", "texture")
        ),
    ],
)
def test_a_file_of_prompts(name: str, file: str, count: int) -> None:
    section = documented(name)
    section["file"] = {"path": str(sets_folder() / file)}
    assert len(load(section).rows) == count


def test_geneval() -> None:
    section = documented("GenEval") | {"path": str(sets_folder() / "geneval/prompts/evaluation_metadata.jsonl")}
    split = load(section)
    assert split.report is not None
    assert (len(split.rows), split.report.notes) == (553, ())


@pytest.mark.parametrize(
    ("version", "files", "rewritten"),
    [
        ("legacy", [WISE_FILES.format(part) for part in WISE_PARTS], []),
        (
            "legacy",
            [WISE_FILES.format(part) for part in WISE_PARTS],
            [WISE_FILES.format(f"{part}_rewrite") for part in WISE_PARTS],
        ),
        ("verified", ["data_verified/merge.json"], []),
    ],
)
def test_wise(version: str, files: list[str], rewritten: list[str]) -> None:
    folder = sets_folder() / "WISE"
    section = documented("WISE") | {
        "version": version,
        "paths": [str(folder / file) for file in files],
        "rewritten": [str(folder / file) for file in rewritten],
    }
    assert len(load(section).rows) == 1000
