"""GenEval's records: official ones are read, others refused with the rule that they break."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.errors import DataError
from chunk_grpo.prompts import read_geneval
from chunk_grpo.scorers.geneval.records import OFFICIAL_COUNTS, TAGS
from tests.geneval_records import COUNTING, POSITION, changed
from tests.prompts.policies import LENIENT, STRICT


def entry(**changes: object) -> dict[str, Any]:
    """The counting record with another entry."""
    thing = {
        key: value for key, value in {"class": "cow", "count": 1, **changes}.items() if value is not None
    }
    return changed(COUNTING, include=[thing], exclude=None)


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_rows_have_the_tag_and_the_whole_record(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", COUNTING, POSITION)
    found = read_geneval(path, STRICT)
    assert [(row.text, row.category, row.metadata, row.line) for row in found.rows] == [
        ("three cows in a field", "counting", COUNTING, 1),
        ("two red cups to the left of a tv remote", "position", POSITION, 2),
    ]


def test_the_official_numbers() -> None:
    assert [OFFICIAL_COUNTS[tag] for tag in TAGS] == [80, 99, 80, 94, 100, 100]


def test_all_problems_of_a_file_are_told_with_their_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.jsonl", entry(count=0, color="grey"), COUNTING, changed(POSITION, prompt=None), COUNTING
    )
    path.write_text(path.read_text() + "\n{\n")
    with pytest.raises(DataError) as caught:
        read_geneval(path, STRICT)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}: 6 problems (not GenEval's format: 3, no JSON: 1, duplicates: 1, empty: 1)"
    assert [line.split(": ")[0] for line in lines[1:7]] == [f"  line {n}" for n in (1, 1, 3, 4, 5, 6)]


def test_other_numbers_than_the_official_ones_are_noted(tmp_path: Path) -> None:
    (note,) = read_geneval(write(tmp_path / "m.jsonl", COUNTING, POSITION), STRICT).report.notes
    assert (
        "not GenEval's official 553 prompts, so scores do not compare; counts here (official): single_object 0 (80)"
        in note
    )
    assert "counting 1 (80), colors 0 (94), position 1 (100)" in note


def test_the_official_numbers_need_no_note(tmp_path: Path) -> None:
    records = [
        {"tag": tag, "include": [{"class": "cow", "count": 1}], "prompt": f"{tag} {number}"}
        for tag, count in OFFICIAL_COUNTS.items()
        for number in range(count)
    ]
    path = write(tmp_path / "m.jsonl", *records)
    found = read_geneval(path, STRICT)
    assert (len(found.rows), found.report.notes) == (553, ())
    found = read_geneval(path, STRICT, count=100)
    assert (len(found.rows), found.report.used, found.report.read) == (100, 100, 553)
    assert "single_object 80 (80), two_object 20 (99), counting 0 (80)" in found.report.notes[0]


def test_dropped_prompts_are_not_among_the_official_ones(tmp_path: Path) -> None:
    records = [
        {"tag": tag, "include": [{"class": "cow", "count": 1}], "prompt": f"{tag} {max(number, 1)}"}
        for tag, count in OFFICIAL_COUNTS.items()
        for number in range(count)
    ]
    (note,) = read_geneval(write(tmp_path / "m.jsonl", *records), LENIENT).report.notes
    assert "single_object 79 (80), two_object 98 (99)" in note


def test_rules_hold_for_its_prompts_too(tmp_path: Path) -> None:
    records = [COUNTING, COUNTING, changed(COUNTING, prompt=""), changed(COUNTING, prompt=" cows")]
    found = read_geneval(write(tmp_path / "m.jsonl", *records), LENIENT)
    assert [(row.text, row.line) for row in found.rows] == [("three cows in a field", 1), ("cows", 4)]
    assert [(f.action, f.lines) for f in found.report.findings] == [
        ("drop", (2,)),
        ("drop", (3,)),
        ("strip", (4,)),
    ]
