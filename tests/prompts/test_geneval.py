"""GenEval's records: official ones are read, others refused with the rule that they break."""

import json
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.errors import DataError
from chunk_grpo.prompts.geneval import content_key, read_geneval, read_geneval_benchmark
from chunk_grpo.prompts.rows import PromptRow
from chunk_grpo.scorers.geneval.records import OFFICIAL_COUNTS
from tests.geneval_records import COUNTING, POSITION, changed
from tests.prompts.files import LENIENT, STRICT


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def official(first: int = 0) -> list[dict[str, Any]]:
    """Records with the official number of each tag; with `first` > 0 some are equal."""
    return [
        {"tag": tag, "include": [{"class": "cow", "count": 1}], "prompt": f"{tag} {max(number, first)}"}
        for tag, count in OFFICIAL_COUNTS.items()
        for number in range(count)
    ]


def test_rows_have_the_tag_and_the_whole_record(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", COUNTING, POSITION)
    found = read_geneval_benchmark(path, STRICT)
    assert [(row.text, row.category, row.metadata, row.line) for row in found.rows] == [
        ("three cows in a field", "counting", COUNTING, 1),
        ("two red cups to the left of a tv remote", "position", POSITION, 2),
    ]
    (note,) = found.report.notes
    assert note == (
        f"{path}: not GenEval's official 553 prompts, so scores do not compare; counts here (official): "
        "single_object 0 (80), two_object 0 (99), counting 1 (80), colors 0 (94), position 1 (100), color_attr 0 (100)"
    )


def test_all_problems_of_a_file_are_reported_with_lines(tmp_path: Path) -> None:
    wrong = changed(COUNTING, include=[{"class": "cow", "count": 0, "color": "grey"}], exclude=None)
    path = write(tmp_path / "m.jsonl", wrong, COUNTING, changed(POSITION, prompt=None), COUNTING)
    path.write_text(path.read_text() + "\n{\n")
    with pytest.raises(DataError) as caught:
        read_geneval(path, STRICT)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}: 5 problems (not GenEval's format: 3, duplicates: 1, empty: 1)"
    assert [line.split(": ")[0] for line in lines[1:6]] == [f"  line {n}" for n in (1, 3, 4, 5, 6)]
    assert "count" in lines[1]
    assert "grey" in lines[1]


def test_the_official_numbers_need_no_note(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", *official())
    found = read_geneval_benchmark(path, STRICT)
    assert (len(found.rows), found.report.notes) == (553, ())
    found = read_geneval_benchmark(path, STRICT, count=100)
    assert (len(found.rows), found.report.used, found.report.read) == (100, 100, 553)
    assert "single_object 80 (80), two_object 20 (99), counting 0 (80)" in found.report.notes[0]


def test_rules_hold_for_its_prompts_and_dropped_ones_do_not_count(tmp_path: Path) -> None:
    empty = changed(COUNTING, prompt="")
    found = read_geneval_benchmark(write(tmp_path / "m.jsonl", *official(1), empty), LENIENT)
    assert [(f.action, len(f.lines)) for f in found.report.findings] == [("drop", 6), ("drop", 1)]
    assert "single_object 79 (80), two_object 98 (99)" in found.report.notes[0]


def test_records_of_another_form_may_be_dropped_and_reading_ends_at_a_limit(tmp_path: Path) -> None:
    rules = LENIENT.model_copy(update={"records": "drop"})
    path = write(tmp_path / "m.jsonl", changed(COUNTING, include=None), COUNTING, POSITION, COUNTING)
    found = read_geneval(path, rules)
    assert [row.line for row in found.rows] == [2, 3]
    assert [(f.what, f.action, f.lines) for f in found.report.findings] == [
        ("not GenEval's format", "drop", (1,)),
        ("duplicates", "drop", (4,)),
    ]
    assert (found.report.read, found.report.kept) == (4, 2)
    assert [row.line for row in read_geneval(path, rules, limit=2).rows] == [2]


def asks(*include: dict[str, Any], exclude: tuple[dict[str, Any], ...] = ()) -> PromptRow:
    record = {"tag": "position", "include": list(include), "exclude": list(exclude), "prompt": "any words"}
    return PromptRow("any words", "position", record, 1, "file")


def thing(name: str, count: int = 1, **more: Any) -> dict[str, Any]:
    return {"class": name, "count": count, **more}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (asks(thing("cat"), thing("dog")), asks(thing("dog"), thing("cat")), True),
        (asks(thing("cat", 2)), asks(thing("cat", 3)), False),
        (asks(thing("cat", color="red")), asks(thing("cat", color="blue")), False),
        (asks(thing("cat", 2)), asks(thing("cat", 2), exclude=(thing("cat", 3),)), False),
        (  # a dog right of a cat is a cat left of a dog
            asks(thing("cat"), thing("dog", position=["right of", 0])),
            asks(thing("dog"), thing("cat", position=["left of", 0])),
            True,
        ),
        (
            asks(thing("cat"), thing("dog", position=["right of", 0])),
            asks(thing("dog"), thing("cat", position=["right of", 0])),
            False,
        ),
        (
            asks(thing("cat"), thing("dog", position=["above", 0])),
            asks(thing("cat"), thing("dog", position=["below", 0])),
            False,
        ),
    ],
)
def test_contents_are_compared_whatever_the_words_and_their_order(one, other, same):
    assert (content_key(one) == content_key(other)) is same
