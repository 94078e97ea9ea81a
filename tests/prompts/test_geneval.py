"""GenEval's records: official ones are read, others refused with the rule that they break."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.errors import DataError
from chunk_grpo.prompts import PromptRules, geneval_problems, read_geneval
from chunk_grpo.prompts.geneval import OFFICIAL_COUNTS
from chunk_grpo.scorers.geneval.records import CLASS_NAMES, COLOURS, TAGS

STRICT = PromptRules(duplicates="refuse", empty="refuse", spaces="refuse", too_long="refuse")

# Of our own making, in the official keys and order.
COUNTING = {
    "tag": "counting",
    "include": [{"class": "cow", "count": 3}],
    "exclude": [{"class": "cow", "count": 4}],
    "prompt": "three cows in a field",
}
POSITION = {
    "tag": "position",
    "include": [
        {"class": "tv remote", "count": 1},
        {"class": "cup", "count": 1, "color": "red", "position": ["left of", 0]},
    ],
    "prompt": "a red cup to the left of a tv remote",
}


def changed(record: dict[str, Any], **changes: object) -> dict[str, Any]:
    """A copy with other values; None removes a key."""
    copy = {**json.loads(json.dumps(record)), **changes}
    return {key: value for key, value in copy.items() if value is not None}


def entry(**changes: object) -> dict[str, Any]:
    """The counting record with another entry."""
    thing = {
        key: value for key, value in {"class": "cow", "count": 1, **changes}.items() if value is not None
    }
    return changed(COUNTING, include=[thing], exclude=None)


def placed(position: object) -> dict[str, Any]:
    return changed(
        POSITION, include=[{"class": "cup", "count": 1}, {"class": "cow", "count": 1, "position": position}]
    )


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_rows_have_the_tag_and_the_whole_record(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", COUNTING, POSITION)
    found = read_geneval(path, STRICT, {})
    assert [(row.text, row.category, row.metadata, row.line) for row in found.rows] == [
        ("three cows in a field", "counting", COUNTING, 1),
        ("a red cup to the left of a tv remote", "position", POSITION, 2),
    ]


def test_facts_of_the_original() -> None:
    assert (len(CLASS_NAMES), len(set(CLASS_NAMES)), len(COLOURS), sum(OFFICIAL_COUNTS.values())) == (
        80,
        80,
        10,
        553,
    )
    assert CLASS_NAMES[::79] == ("person", "toothbrush")
    assert CLASS_NAMES[64:67] == ("computer mouse", "tv remote", "computer keyboard")
    assert [OFFICIAL_COUNTS[tag] for tag in TAGS] == [80, 99, 80, 94, 100, 100]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ([1], "must be an object, got [1]"),
        (changed(COUNTING, tag="count"), "tag: must be one of single_object, two_object, counting"),
        (changed(COUNTING, tag=["counting"]), "tag: must be one of"),
        (changed(COUNTING, prompt=7), "prompt: must be text, got 7"),
        (changed(COUNTING, prompt=None), "prompt: is missing"),
        (changed(COUNTING, tag=None), "tag: is missing"),
        (changed(COUNTING, include=None), "include: is missing"),
        (changed(COUNTING, include=[], exclude=None), "include: must be a list of objects, got []"),
        (changed(COUNTING, include={"class": "cow"}, exclude=None), "include: must be a list of objects"),
        (changed(COUNTING, exclude="cow"), "exclude: must be a list of objects, got 'cow'"),
        (changed(COUNTING, include=["cow"], exclude=None), "include[0]: must be an object, got 'cow'"),
        (changed(COUNTING, exlude=[]), "exlude: unknown key; known here: exclude, include, prompt, tag"),
        (entry(colour="red"), "include[0].colour: unknown key; known here: class, color, count, position"),
        (changed(COUNTING, exclude=[{"class": "cow", "count": 4, "color": "red"}]), "exclude[0].color: unknown key"),
        (entry(count=None), "include[0].count: is missing"),
        (entry(**{"class": None}), "include[0].class: is missing"),
        (entry(**{"class": "mouse"}), "include[0].class: must be one of COCO's 80 classes by GenEval's names, got"),
        (entry(count=0), "include[0].count: must be a whole number >= 1, got 0"),
        (entry(count=1.0), "include[0].count: must be a whole number >= 1, got 1.0"),
        (entry(count=True), "include[0].count: must be a whole number >= 1, got True"),
        (changed(COUNTING, exclude=[{"class": "cow", "count": 0}]), "exclude[0].count: must be a whole number >= 1"),
        (changed(COUNTING, exclude=[{"class": "ox", "count": 4}]), "exclude[0].class: must be one of COCO's"),
        (entry(color="grey"), "include[0].color: must be one of red, orange, yellow"),
        (entry(position=["above", 0]), "include[0].position: must name an entry of include before this one, and there"),
        (placed(["beside", 0]), "include[1].position: the relation must be one of left of, right of, above, below"),
        (placed(["above", 1]), "include[1].position: must name an entry of include before this one, from 0 to 0, got"),
        (placed(["above", -1]), "include[1].position: must name an entry of include before this one"),
        (placed(["above", False]), "include[1].position: must name an entry of include before this one"),
        (placed(["above"]), "include[1].position: must be [relation, number of an entry], got ['above']"),
        (placed("above"), "include[1].position: must be [relation, number of an entry], got 'above'"),
        (
            changed(COUNTING, exclude=[{"class": "cow", "count": 3}]),
            "exclude[0]: forbids 3 of 'cow', include asks for 3: no image can be right",
        ),
        (
            changed(
                COUNTING,
                include=[{"class": "cow", "count": 3}, {"class": "cow", "count": 1, "color": "red"}],
                exclude=[{"class": "cow", "count": 2}],
            ),
            "exclude[0]: forbids 2 of 'cow', include asks for 3: no image can be right",
        ),
    ],
)  # fmt: skip
def test_each_rule(record: object, problem: str) -> None:
    problems = geneval_problems(record)
    assert len(problems) == 1, problems
    assert problems[0].startswith(problem)


def test_good_records_have_no_problem() -> None:
    for record in (COUNTING, POSITION, entry(color="white"), placed(["below", 0])):
        assert geneval_problems(record) == []
    assert geneval_problems(changed(COUNTING, exclude=[{"class": "horse", "count": 1}])) == []


def test_all_problems_of_a_file_are_told_with_their_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.jsonl", entry(count=0, color="grey"), COUNTING, changed(POSITION, tag="x"), COUNTING
    )
    path.write_text(path.read_text() + "\n{\n")
    with pytest.raises(DataError) as caught:
        read_geneval(path, STRICT, {})
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}: 6 problems (not GenEval's format: 3, no JSON: 1, duplicates: 1, empty: 1)"
    assert [line.split(": ")[0] for line in lines[1:7]] == [f"  line {n}" for n in (1, 1, 3, 4, 5, 6)]


def test_other_numbers_than_the_official_ones_are_noted(tmp_path: Path) -> None:
    (note,) = read_geneval(write(tmp_path / "m.jsonl", COUNTING, POSITION), STRICT, {}).report.notes
    assert (
        "not GenEval's official 553 prompts, so scores do not compare; here and (there): single_object 0 (80)"
        in note
    )
    assert "counting 1 (80), colors 0 (94), position 1 (100)" in note


def test_the_official_numbers_need_no_note(tmp_path: Path) -> None:
    records = [
        {"tag": tag, "include": [{"class": "cow", "count": 1}], "prompt": f"{tag} {number}"}
        for tag, count in OFFICIAL_COUNTS.items()
        for number in range(count)
    ]
    found = read_geneval(write(tmp_path / "m.jsonl", *records), STRICT, {})
    assert (len(found.rows), found.report.notes) == (553, ())


def test_rules_hold_for_its_prompts_too(tmp_path: Path) -> None:
    rules = PromptRules(duplicates="drop", empty="drop", spaces="strip", too_long="keep")
    records = [COUNTING, COUNTING, changed(COUNTING, prompt=""), changed(COUNTING, prompt=" cows")]
    found = read_geneval(write(tmp_path / "m.jsonl", *records), rules, {"clip": (len, 20)})
    assert [(row.text, row.line) for row in found.rows] == [("three cows in a field", 1), ("cows", 4)]
    assert [(f.action, f.lines) for f in found.report.findings] == [
        ("keep", (1,)),
        ("drop", (2,)),
        ("drop", (3,)),
        ("strip", (4,)),
    ]
