"""WISE's files in both versions, with texts of our own."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.wise import read_wise
from chunk_grpo.scorers.wise.protocols import ProtocolName, category_of
from tests.prompts.files import LENIENT, STRICT

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
    path.write_text(json.dumps(list(records)))
    return path


def refused(*paths: Path, version: ProtocolName = "legacy", rewritten: tuple[Path, ...] = ()) -> str:
    with pytest.raises(DataError) as caught:
        read_wise(paths, version, STRICT, rewritten, missing_ids="report")
    return str(caught.value)


@pytest.mark.parametrize(
    ("version", "counts"), [("legacy", [400, 167, 133, 100, 100, 100]), ("verified", [400, 120, 120, 120, 120, 120])]
)
def test_sizes_of_the_categories(version: ProtocolName, counts: list[int], tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{first}.json", [record(number, version) for number in range(first, last)])
        for first, last in ((1, 401), (401, 701), (701, 1001))
    ]
    found = read_wise(files, version, STRICT)
    assert [row.metadata["wise_id"] for row in found.rows] == list(range(1, 1001))
    assert list(Counter(row.category for row in found.rows).values()) == counts
    assert found.report.notes == ()


class TestRecords:
    def test_a_row(self, tmp_path: Path) -> None:
        path = write(tmp_path / "w.json", [record(2), record(1)])
        rows = read_wise([path], "legacy", STRICT, missing_ids="report").rows
        assert [(row.text, row.category, row.metadata, row.line, row.source) for row in rows] == [
            ("question 2", "culture", {"wise_id": 2, "explanation": "answer 2"}, 1, str(path)),
            ("question 1", "culture", {"wise_id": 1, "explanation": "answer 1"}, 2, str(path)),
        ]

    @pytest.mark.parametrize(
        ("value", "rule"),
        [
            ("text", "must be an object, got 'text'"),
            ({"prompt_id": 1, "Prompt": "a", "Category": "time"}, "Explanation: required, but missing"),
            (record(1, prompt_id=True), "prompt_id: must be a whole number, got true"),
            (record(1, prompt_id=0), "prompt_id: must be >= 1, got 0"),
            (record(1, prompt_id=1001), "prompt_id: must be <= 1000, got 1001"),
            (record(1, Prompt=7, Explanation=None), "Prompt: must be text, got 7; Explanation: must be text, got null"),
            (record(1, Explanation=""), "Explanation: "),
            (record(1, Category="Ecology"), "id 1 is of culture in the version legacy, but its Category is 'Ecology'; "
             "is the file from the other version?"),
            (record(2, Prompt="again"), "the id 2 is already used in "),
            (record(1, Prompt="question 2"), "the same prompt as in row 1: 'question 2'"),
            (record(1, Prompt=" "), "an empty prompt"),
        ],
    )  # fmt: skip
    def test_each_rule(self, value: object, rule: str, tmp_path: Path) -> None:
        path = write(tmp_path / "w.json", [record(2), value])
        assert refused(path).startswith(f"{path}, row 2: {rule}")

    def test_problems_of_two_files_name_both(self, tmp_path: Path) -> None:
        first = write(tmp_path / "a.json", [record(1), record(2)])
        second = write(tmp_path / "b.json", [record(2, Prompt="again"), record(3, Prompt="question 1")])
        message = refused(first, second)
        assert f"{second}, row 1: the id 2 is already used in {first}, row 2: 'again'" in message
        assert f"{second}, row 2: the same prompt as in {first}, row 1: 'question 1'" in message

    def test_no_id_is_dropped_for_its_text(self, tmp_path: Path) -> None:
        path = write(tmp_path / "w.json", [record(1), record(2, Prompt="question 1")])
        assert len(read_wise([path], "legacy", LENIENT, missing_ids="report").rows) == 2


class TestMissingIds:
    def test_missing_ids_are_refused_or_noted(self, tmp_path: Path) -> None:
        left_out = (3, 500, 501, 502, 1000)
        path = write(tmp_path / "w.json", [record(n) for n in range(1, 1001) if n not in left_out])
        found = read_wise([path], "legacy", STRICT, missing_ids="report", count=600)
        assert (len(found.rows), found.report.used, found.report.kept) == (600, 600, 995)
        assert found.report.notes == ("WISE (legacy): 400 ids are missing: 3, 500-502, 605-1000",)
        found = read_wise([path], "legacy", STRICT, missing_ids="report")
        assert found.report.notes == ("WISE (legacy): 5 ids are missing: 3, 500-502, 1000",)
        with pytest.raises(DataError, match=r"ids 1 to 1000, 5 are missing: 3, 500-502, 1000\. Give all"):
            read_wise([path], "legacy", STRICT)


class TestRewritten:
    def test_rewritten_text_replaces_prompt_and_keeps_original(self, tmp_path: Path) -> None:
        """A rewritten file may name another category and explanation, which are not used."""
        path = write(tmp_path / "w.json", [record(1), record(748)])
        leaf = record(748, Prompt="a leaf", Category="Ecology", Explanation="another")
        other = write(tmp_path / "r.json", [leaf, record(1, Prompt="a cake")])
        rows = read_wise([path], "legacy", STRICT, [other], missing_ids="report").rows
        assert [(row.text, row.category, row.line) for row in rows] == [
            ("a cake", "culture", 1),
            ("a leaf", "biology", 2),
        ]
        assert [row.metadata for row in rows] == [
            {"wise_id": 1, "explanation": "answer 1", "original_prompt": "question 1"},
            {"wise_id": 748, "explanation": "answer 748", "original_prompt": "question 748"},
        ]

    def test_unmatched_rewritten_prompts_are_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path / "w.json", [record(1), record(2)])
        other = write(tmp_path / "r.json", [record(2, Prompt="a cake"), record(3, Prompt="a tree")])
        assert refused(path, rewritten=(other,)).splitlines()[1:3] == [
            f"  {path}, row 1: id 1 has no rewritten prompt: 'question 1'",
            f"  {other}, row 2: id 3 has no original prompt: 'a tree'",
        ]

    @pytest.mark.parametrize("rules", [STRICT, LENIENT])
    def test_equal_ones_are_kept_and_reported(self, rules: PromptChecks, tmp_path: Path) -> None:
        path = write(tmp_path / "w.json", [record(1), record(2)])
        other = write(tmp_path / "r.json", [record(n, Prompt="a dragon") for n in (1, 2)])
        found = read_wise([path], "legacy", rules, [other], missing_ids="report")
        assert [row.metadata["wise_id"] for row in found.rows] == [1, 2]
        assert [(f.what, f.action, f.lines) for f in found.report.findings] == [("duplicates", "keep", (2,))]
