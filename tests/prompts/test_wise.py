"""WISE's files in both versions, with texts of our own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.prompts import read_wise
from chunk_grpo.scorers.wise.protocols import ProtocolName, category_of
from tests.prompts.policies import LENIENT, STRICT

CALLED = {
    "culture": "Cultural knowledge",
    "time": "time",
    "space": "Space",
    "biology": "Biology",
    "physics": "Physical Knowledge",
    "chemistry": "Chemistry",
}


def record(number: int, version: ProtocolName = "legacy", **changes: object) -> dict[str, Any]:
    return {
        "Prompt": f"question {number}",
        "Explanation": f"answer {number}",
        "Category": CALLED[category_of(version, number)],
        "Subcategory": "any",
        "prompt_id": number,
        **changes,
    }


def write(path: Path, records: Iterable[object]) -> Path:
    """One record a line, the first on line 2."""
    path.write_text("[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n")
    return path


def refused(*paths: Path, version: ProtocolName = "legacy", rewritten: tuple[Path, ...] = ()) -> str:
    with pytest.raises(DataError) as caught:
        read_wise(paths, version, STRICT, rewritten, missing_ids="report")
    return str(caught.value)


class TestCategories:
    @pytest.mark.parametrize(
        ("version", "counts"),
        [("legacy", [400, 167, 133, 100, 100, 100]), ("verified", [400, 120, 120, 120, 120, 120])],
    )
    def test_their_sizes(self, version: ProtocolName, counts: list[int], tmp_path: Path) -> None:
        files = [
            write(tmp_path / f"{first}.json", [record(number, version) for number in range(first, last)])
            for first, last in ((1, 401), (401, 701), (701, 1001))
        ]
        found = read_wise(files, version, STRICT)
        assert [row.metadata["wise_id"] for row in found.rows] == list(range(1, 1001))
        assert list(Counter(row.category for row in found.rows).values()) == counts
        assert found.report.notes == ()

    def test_a_file_of_the_other_version_is_noticed(self, tmp_path: Path) -> None:
        path = write(tmp_path / "w.json", [record(number, "legacy") for number in (520, 521, 567)])
        rest = "is of space in the version verified, but its Category is 'time'; is the file from the other version?"
        assert refused(path, version="verified").splitlines() == [
            f"{path}: 2 problems (not WISE's format: 2)",
            f"  line 3: id 521 {rest}",
            f"  line 4: id 567 {rest}",
            "Fix the file, or a copy of it.",
        ]


class TestRecords:
    def test_a_row(self, tmp_path: Path) -> None:
        path = write(tmp_path / "w.json", [record(2), record(1)])
        rows = read_wise([path], "legacy", STRICT, missing_ids="report").rows
        assert [(row.text, row.category, row.metadata, row.line, row.source) for row in rows] == [
            ("question 2", "culture", {"wise_id": 2, "explanation": "answer 2"}, 2, str(path)),
            ("question 1", "culture", {"wise_id": 1, "explanation": "answer 1"}, 3, str(path)),
        ]

    @pytest.mark.parametrize(
        ("value", "rule"),
        [
            ("text", "must be an object, got 'text'"),
            (
                {"prompt_id": 1, "Prompt": "a", "Category": "time"},
                "Explanation: required, but missing; the record has: prompt_id, ",
            ),
            (record(1, prompt_id="1"), "prompt_id: must be a whole number, got '1'"),
            (record(1, prompt_id=True), "prompt_id: must be a whole number, got True"),
            (record(1, prompt_id=0), "prompt_id: must be from 1 to 1000, got 0"),
            (record(1, prompt_id=1001), "prompt_id: must be from 1 to 1000, got 1001"),
            (record(1, Prompt=" "), "Prompt of id 1: must be text, got ' '"),
            (record(1, Explanation=None), "Explanation of id 1: must be text, got None"),
            (record(1, Category=7), "Category of id 1: must be text, got 7"),
            (record(1, Category="Ecology"), "id 1 is of culture in the version legacy, but its Category is 'Ecology'"),
        ],
    )  # fmt: skip
    def test_each_rule(self, value: object, rule: str, tmp_path: Path) -> None:
        message = refused(write(tmp_path / "w.json", [record(2), value]))
        assert message.splitlines()[1].startswith(f"  line 3: {rule}")

    def test_an_id_that_is_there_twice(self, tmp_path: Path) -> None:
        first = write(tmp_path / "a.json", [record(1), record(2), record(1, Prompt="again")])
        second = write(tmp_path / "b.json", [record(2, Prompt="and again")])
        message = refused(first, second)
        assert "2 problems (repeated ids: 2)" in message
        assert f"{first}, line 4: the id 1 is already used in {first}, line 2: 'again'" in message
        assert f"{second}, line 2: the id 2 is already used in {first}, line 3: 'and again'" in message

    def test_a_broken_file(self, tmp_path: Path) -> None:
        path = write(tmp_path / "w.json", [record(1)])
        path.write_text(path.read_text()[:-3])
        message = refused(path)
        assert "1 problem (no JSON: 1)" in message
        assert "line 2: must continue with , or ], got the end of the file" in message


class TestMissingIds:
    def test_they_are_refused_or_noted(self, tmp_path: Path) -> None:
        path = write(
            tmp_path / "w.json", [record(n) for n in range(1, 1001) if n not in (3, 500, 501, 502, 1000)]
        )
        found = read_wise([path], "legacy", STRICT, missing_ids="report")
        assert found.report.notes == ("WISE (legacy): 5 ids are missing: 3, 500-502, 1000",)
        with pytest.raises(DataError, match=r"ids 1 to 1000, 5 are missing: 3, 500-502, 1000\. Give all"):
            read_wise([path], "legacy", STRICT)

    def test_those_that_are_not_taken_are_noted(self, tmp_path: Path) -> None:
        path = write(tmp_path / "w.json", [record(n) for n in range(1, 1001)])
        found = read_wise([path], "legacy", STRICT, count=600)
        assert (len(found.rows), found.report.used, found.report.kept) == (600, 600, 1000)
        assert found.report.notes == ("WISE (legacy): 400 ids are missing: 601-1000",)
        with pytest.raises(DataError, match="500 are missing: 501-1000"):
            read_wise([write(path, [record(n) for n in range(1, 501)])], "legacy", STRICT, count=500)


class TestRewritten:
    def test_it_replaces_the_text_and_keeps_the_original(self, tmp_path: Path) -> None:
        path = write(tmp_path / "w.json", [record(1), record(748)])
        other = write(
            tmp_path / "r.json",
            [
                record(748, Prompt="a leaf", Category="Ecology", Explanation="another"),
                record(1, Prompt="a cake"),
            ],
        )
        rows = read_wise([path], "legacy", STRICT, [other], missing_ids="report").rows
        assert [(row.text, row.category, row.metadata, row.line) for row in rows] == [
            (
                "a cake",
                "culture",
                {"wise_id": 1, "explanation": "answer 1", "original_prompt": "question 1"},
                2,
            ),
            (
                "a leaf",
                "biology",
                {"wise_id": 748, "explanation": "answer 748", "original_prompt": "question 748"},
                3,
            ),
        ]

    def test_a_mixture_is_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path / "w.json", [record(1), record(2)])
        other = write(tmp_path / "r.json", [record(2, Prompt="a cake"), record(3, Prompt="a tree")])
        message = refused(path, rewritten=(other,))
        assert f"{path}, line 2: id 1 has no rewritten prompt: 'question 1'" in message
        assert f"{other}, line 3: id 3 has a rewritten prompt, but no original: 'a tree'" in message
        assert "2 problems" in message

    @pytest.mark.parametrize("rules", [STRICT, LENIENT])
    def test_equal_ones_are_kept_and_reported(self, rules: PromptChecks, tmp_path: Path) -> None:
        path = write(tmp_path / "w.json", [record(1), record(2)])
        other = write(tmp_path / "r.json", [record(1, Prompt="a dragon"), record(2, Prompt="a dragon")])
        found = read_wise([path], "legacy", rules, [other], missing_ids="report")
        assert [row.metadata["wise_id"] for row in found.rows] == [1, 2]
        assert [(f.what, f.action, f.lines) for f in found.report.findings] == [("duplicates", "keep", (3,))]


def test_no_id_is_dropped_for_its_text(tmp_path: Path) -> None:
    path = write(tmp_path / "w.json", [record(1), record(2, Prompt="question 1")])
    assert "line 3: the same prompt as in line 2" in refused(path)
    assert len(read_wise([path], "legacy", LENIENT, missing_ids="report").rows) == 2


def test_equal_texts_of_two_files_name_the_other_file(tmp_path: Path) -> None:
    first = write(tmp_path / "a.json", [record(1)])
    second = write(tmp_path / "b.json", [record(2, Prompt="question 1")])
    assert f"{second}, line 2: the same prompt as in {first}, line 2: 'question 1'" in refused(first, second)
