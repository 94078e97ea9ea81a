"""Prompt records: the official form is read, anything else is refused with key, rule and value."""

from typing import Any

import pytest

from chunk_grpo.scorers.geneval.records import CLASS_NAMES, COCO_NAMES, Unwanted, Wanted, parse_record


def test_every_kind_of_clause() -> None:
    record = parse_record(
        {
            "tag": "position",
            "include": [
                {"class": "dog", "count": 1, "color": "red"},
                {"class": "tv remote", "count": 2, "position": ["left of", 0]},
            ],
            "exclude": [{"class": "dog", "count": 3}],
            "prompt": "two tv remotes left of a red dog",
        }
    )
    assert record.tag == "position"
    assert record.include == (Wanted("dog", 1, "red"), Wanted("tv remote", 2, None, "left of", 0))
    assert record.exclude == (Unwanted("dog", 3),)


def test_exclude_and_prompt_may_be_left_out() -> None:
    assert parse_record({"tag": "single_object", "include": [{"class": "cat", "count": 1}]}).exclude == ()


def test_names_differ_from_cocos_in_three() -> None:
    assert len(set(COCO_NAMES)) == len(set(CLASS_NAMES)) == 80
    pairs = enumerate(zip(COCO_NAMES, CLASS_NAMES, strict=True))
    differ = {index: names for index, names in pairs if names[0] != names[1]}
    assert differ == {
        64: ("mouse", "computer mouse"),
        65: ("remote", "tv remote"),
        66: ("keyboard", "computer keyboard"),
    }


CAT = {"class": "cat", "count": 1}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"include": [CAT]}, "the record: needs tag"),
        ({"tag": "colors"}, "needs include, has tag"),
        ({"tag": "colours", "include": [CAT]}, "tag: must be one of single_object"),
        ({"tag": "colors", "include": [CAT], "exlude": []}, "unknown exlude"),
        ({"tag": "colors", "include": []}, r"include: must demand one object at least, got \[\]"),
        ({"tag": "colors", "include": CAT}, "include: must be a list"),
        (
            {"tag": "colors", "include": ["cat"]},
            "include.0: must be an object with class and count, got 'cat'",
        ),
        ({"tag": "colors", "include": [{"class": "cat"}]}, "include.0: needs count, has class"),
        ({"tag": "colors", "include": [CAT, {"class": "Cat", "count": 1}]}, "include.1.class: .* got 'Cat'"),
        (
            {"tag": "colors", "include": [{"class": "mouse", "count": 1}]},
            "GenEval's name is 'computer mouse'",
        ),
        ({"tag": "colors", "include": [CAT | {"count": 0}]}, "include.0.count: .* at least 1, got 0"),
        ({"tag": "colors", "include": [CAT | {"count": True}]}, "include.0.count: .* got True"),
        ({"tag": "colors", "include": [CAT | {"count": 1.5}]}, "include.0.count: .* got 1.5"),
        (
            {"tag": "colors", "include": [CAT | {"color": "gray"}]},
            "include.0.color: must be one of red, .* got 'gray'",
        ),
        ({"tag": "colors", "include": [CAT | {"colour": "red"}]}, "include.0: unknown colour"),
        (
            {"tag": "position", "include": [CAT, CAT | {"position": "above"}]},
            r"include.1.position: must be \[relation",
        ),
        (
            {"tag": "position", "include": [CAT, CAT | {"position": ["over", 0]}]},
            "must be one of left of, .* 'over'",
        ),
        (
            {"tag": "position", "include": [CAT, CAT | {"position": ["above", 1]}]},
            "an earlier clause than 1, got 1",
        ),
        (
            {"tag": "position", "include": [CAT, CAT | {"position": ["above", -1]}]},
            "an earlier clause than 1, got -1",
        ),
        (
            {"tag": "position", "include": [CAT | {"position": ["above", 0]}]},
            "an earlier clause than 0, got 0",
        ),
        ({"tag": "counting", "include": [CAT], "exclude": [{"class": "cat"}]}, "exclude.0: needs count"),
        (
            {"tag": "counting", "include": [CAT], "exclude": [CAT | {"color": "red"}]},
            "exclude.0: unknown color",
        ),
    ],
)
def test_malformed_records(record: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_record(record)
