"""Prompt records: the official form is read, anything else is refused with key, rule and value."""

from __future__ import annotations

from typing import Any

import pytest

from chunk_grpo.scorers.geneval.records import (
    CLASS_NAMES,
    COCO_NAMES,
    COLOURS,
    Unwanted,
    Wanted,
    parse_record,
    record_problems,
)
from tests.geneval_records import COUNTING, POSITION, changed


def clause(**changes: object) -> dict[str, Any]:
    """A record with one clause, that of a cow with changes."""
    return changed(COUNTING, include=[changed({"class": "cow", "count": 1}, **changes)], exclude=None)


def placed(position: object) -> dict[str, Any]:
    """A record whose second clause has a position."""
    return changed(POSITION, include=[{"class": "cup", "count": 1}, {"class": "cow", "count": 1, "position": position}])


def test_every_kind_of_clause():
    counting, position = parse_record(COUNTING), parse_record(POSITION)
    cow: dict[str, Any] = {"class": "cow"}
    assert (counting.tag, position.tag) == ("counting", "position")
    assert counting.include == (Wanted(**cow, count=3),)
    assert counting.exclude == (Unwanted(**cow, count=4),)
    assert position.exclude == ()
    remote, cup = position.include
    assert (remote.class_name, remote.count, remote.colour, remote.position) == ("tv remote", 1, None, None)
    assert (cup.class_name, cup.count, cup.colour, cup.position) == ("cup", 2, "red", ("left of", 0))


def test_names_differ_from_cocos_in_three():
    assert len(set(COCO_NAMES)) == len(set(CLASS_NAMES)) == 80
    assert CLASS_NAMES[::79] == ("person", "toothbrush")
    assert len(COLOURS) == 10
    pairs = enumerate(zip(COCO_NAMES, CLASS_NAMES, strict=True))
    differ = {index: names for index, names in pairs if names[0] != names[1]}
    assert differ == {
        64: ("mouse", "computer mouse"),
        65: ("remote", "tv remote"),
        66: ("keyboard", "computer keyboard"),
    }


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ([1], "must be an object, got [1]"),
        (changed(COUNTING, tag="count"), "tag: must be one of 'single_object', 'two_object', 'counting'"),
        (changed(COUNTING, tag=None), "tag: required, but missing"),
        (changed(COUNTING, include=[], exclude=None), "include: must not be empty"),
        (changed(COUNTING, exlude=[]), "exlude: unknown key; did you mean 'exclude'?"),
        (clause(colour="red"), "include[0].colour: unknown key; did you mean 'color'?"),
        (
            changed(COUNTING, exclude=[{"class": "cow", "count": 4, "color": "red"}]),
            "exclude[0].color: unknown key; known here: class, count",
        ),
        (clause(**{"class": "Cow"}), "include[0].class: must be one of COCO's 80 classes, got 'Cow'"),
        (
            clause(**{"class": "mouse"}),
            "include[0].class: must be one of COCO's 80 classes (GenEval's name is 'computer mouse'), got 'mouse'",
        ),
        (clause(count=0), "include[0].count: must be > 0, got 0"),
        (clause(count=1.0), "include[0].count: must be a whole number, got 1.0"),
        (clause(color="grey"), "include[0].color: must be one of 'red', 'orange', 'yellow'"),
        (clause(position=["above", 0]), "include[0].position: must name an earlier clause by its number from 0, got 0"),
        (placed(["beside", 0]), "include[1].position[0]: must be one of 'left of', 'right of', 'above' or 'below'"),
        (placed(["above", 1]), "include[1].position: must name an earlier clause by its number from 0, got 1"),
        (placed(["above", -1]), "include[1].position: must name an earlier clause by its number from 0, got -1"),
        (placed(["above"]), "include[1].position[1]: required, but missing"),
        (
            changed(COUNTING, exclude=[{"class": "cow", "count": 3}]),
            "exclude[0]: forbids 3 of 'cow', but include asks for 3: no image can be right",
        ),
        (
            changed(
                COUNTING,
                include=[{"class": "cow", "count": 3}, {"class": "cow", "count": 1, "color": "red"}],
                exclude=[{"class": "cow", "count": 2}],
            ),
            "exclude[0]: forbids 2 of 'cow', but include asks for 3: no image can be right",
        ),
    ],
)  # fmt: skip
def test_each_rule(record, problem):
    problems = record_problems(record)
    assert len(problems) == 1, problems
    assert problems[0].startswith(problem)
    if "no image can be right" in problem:
        assert parse_record(record).exclude  # the rules judge it
    else:
        with pytest.raises(ValueError, match=r"must|required|unknown"):
            parse_record(record)


def test_good_records_have_no_problem():
    for record in (COUNTING, POSITION, clause(color="white"), placed(["below", 0])):
        assert record_problems(record) == []
    assert record_problems(changed(COUNTING, prompt=None)) == []
    assert record_problems(changed(COUNTING, exclude=[{"class": "horse", "count": 1}])) == []


def test_all_record_faults_are_reported():
    with pytest.raises(ValueError, match=r"^tag: .*'x'; include\[0\]\.color: .*'grey'$"):
        parse_record(changed(clause(color="grey"), tag="x"))
