"""GenEval's rules on detections made by hand; every expected value follows from the rule in the test's name."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from chunk_grpo.scorers.geneval.records import CLASS_NAMES, TAGS, parse_record
from chunk_grpo.scorers.geneval.rules import (
    Detections,
    Verdict,
    asked_colours,
    found_objects,
    judge,
    overall,
    relations,
    tag_means,
)

Row = tuple[str, float, tuple[float, float, float, float]]
SQUARE = (0.0, 0.0, 10.0, 10.0)


def seen(*rows: Row) -> Detections:
    return Detections(
        np.array([CLASS_NAMES.index(name) for name, _, _ in rows], dtype=np.int64),
        np.array([score for _, score, _ in rows], dtype=np.float32),
        np.array([box for _, _, box in rows], dtype=np.float32).reshape(-1, 4),
        np.zeros((len(rows), 1, 1), dtype=bool),
    )


def many(name: str, *scores: float) -> list[Row]:
    return [(name, score, SQUARE) for score in scores]


def clause(name: str, count: int = 1, **more: Any) -> dict[str, Any]:
    return {"class": name, "count": count, **more}


def decide(
    rows: Sequence[Row],
    *include: dict[str, Any],
    exclude: Sequence[dict[str, Any]] = (),
    colours: Mapping[tuple[str, int], str] | None = None,
) -> Verdict:
    detections = seen(*rows)
    record = parse_record({"tag": "two_object", "include": list(include), "exclude": list(exclude)})
    return judge(record, found_objects(detections, 0.3, 16), detections.boxes, colours or {}, 0.1)


# Which detections count


def test_a_score_must_be_greater_than_the_threshold():
    at = np.float32(0.3)
    rows = many("cat", float(np.nextafter(at, np.float32(1))), float(at), float(np.nextafter(at, np.float32(0))))
    assert found_objects(seen(*rows), 0.3, 16) == {"cat": [0]}


def test_most_confident_first_and_at_most_so_many_of_each_class():
    rows = many("cat", 0.5, 0.9, 0.7, 0.4, 0.1) + many("dog", 0.6)
    assert found_objects(seen(*rows), 0.3, 16) == {"cat": [1, 2, 0, 3], "dog": [5]}
    assert found_objects(seen(*rows), 0.3, 2) == {"cat": [1, 2], "dog": [5]}


def test_later_detection_wins_ties():
    assert found_objects(seen(*many("cat", 0.5, 0.5, 0.5)), 0.3, 2) == {"cat": [2, 1]}


# color


def test_colours_are_asked_of_the_most_confident_objects_of_clauses_with_enough():
    detections = seen(*many("cat", 0.5, 0.9, 0.8), *many("dog", 0.6))
    found = found_objects(detections, 0.3, 16)
    include = [clause("cat", 2, color="red"), clause("dog", 2, color="red"), clause("cat")]
    record = parse_record({"tag": "colors", "include": include})
    assert asked_colours(record, found) == [("cat", 1), ("cat", 2)]
    exactly = parse_record({"tag": "colors", "include": [clause("dog", 1, color="red")]})
    assert asked_colours(exactly, found) == [("dog", 3)]


# position


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        # Sides 10 + 10: the margin is 2 along each axis. Target's centre is (105, 105).
        ((0, 100, 10, 110), ("left of",)),  # (-100, 0) -> (-98, 0) / 100
        ((200, 100, 210, 110), ("right of",)),
        ((100, 0, 110, 10), ("above",)),  # y runs down
        ((100, 200, 110, 210), ("below",)),
        ((200, 0, 210, 10), ("right of", "above")),  # (98, -98) / 141.4 = 0.693
        ((160, 200, 170, 210), ("below",)),  # (58, 98) / 116.6: 0.497 and 0.84
        ((162, 200, 172, 210), ("right of", "below")),  # (60, 98) / 117.7: 0.5099
        ((103, 100, 113, 110), ()),  # (3, 0) -> (1, 0) / 3 = 0.33: too near
        ((104, 100, 114, 110), ()),  # (4, 0) -> (2, 0) / 4 = 0.5: not more than that
        ((105, 100, 115, 110), ("right of",)),  # (5, 0) -> (3, 0) / 5 = 0.6
        ((102, 100, 112, 110), ()),  # within the margin
        ((100, 100, 110, 110), ()),  # the same place
    ],
)
def test_relations(box, expected):
    target = np.array([100, 100, 110, 110], dtype=np.float32)
    assert relations(np.array(box, dtype=np.float32), target, 0.1) == expected


@pytest.mark.parametrize(("offset", "expected"), [(0.0009, ()), (0.0011, ("right of",))])
def test_less_than_a_thousandth_of_a_pixel_is_no_relation(offset, expected):
    """Points, which have no margin."""
    point, target = np.array([[offset, 0, offset, 0], [0, 0, 0, 0]], dtype=np.float32)
    assert relations(point, target, 0.1) == expected


def test_margin_counts_each_axis_by_itself():
    """Wide boxes: 100 + 100 wide shorten x by 20, 10 + 10 high shorten y by 2; offset (30, 30)."""
    target, box = (0, 0, 100, 10), (30, 30, 130, 40)
    boxes = np.array([box, target], dtype=np.float32)
    assert relations(*boxes, 0.1) == ("below",)  # (10, 28) / 42.4: 0.24 and 0.66
    assert relations(*boxes, 0.0) == ("right of", "below")


CAT, DOG = ("cat", 0.9, (0.0, 0.0, 10.0, 10.0)), ("dog", 0.9, (100.0, 0.0, 110.0, 10.0))
BEYOND = ("cat", 0.8, (200.0, 0.0, 210.0, 10.0))
"""A second cat, right of the dog, and less sure."""
RED_CAT, RIGHT_DOG = clause("cat", color="red"), clause("dog", position=["right of", 0])
THREE, LIMIT = many("cat", 0.9, 0.8, 0.7), [clause("cat", 3)]


@pytest.mark.parametrize(
    ("rows", "include", "more", "reasons"),
    [
        # include and exclude
        ([], [clause("cat")], {}, ["cat: include 1, found 0"]),
        (THREE, [clause("cat", 3)], {}, []),  # three times the same box: overlapping objects all count
        (THREE, [clause("cat", 2)], {}, []),  # more than demanded are no fault
        (many("cat", 0.9, 0.2), [clause("cat", 2)], {}, ["cat: include 2, found 1"]),
        (THREE[:2], [clause("cat", 2)], {"exclude": LIMIT}, []),
        (THREE, [clause("cat", 2)], {"exclude": LIMIT}, ["cat: exclude fewer than 3, found 3"]),
        (many("cat", 0.9, 0.8, 0.25), [clause("cat", 2)], {"exclude": LIMIT}, []),  # the third does not count
        (
            many("dog", 0.9),
            [clause("cat"), clause("bird")],
            {"exclude": [clause("dog")]},
            ["cat: include 1, found 0", "bird: include 1, found 0", "dog: exclude fewer than 1, found 1"],
        ),
        # color: the most confident object decides, and as many of the colour as demanded
        (many("cat", 0.5, 0.9), [RED_CAT], {"colours": {("cat", 1): "red"}}, []),
        (many("cat", 0.5, 0.9), [RED_CAT], {"colours": {("cat", 1): "blue"}}, ["cat: color 1 red, found 1 blue"]),
        (
            THREE,
            [clause("cat", 3, color="red")],
            {"colours": {("cat", 0): "white", ("cat", 1): "red", ("cat", 2): "red"}},
            ["cat: color 3 red, found 2 red, 1 white"],
        ),
        # position: seen from the earlier clause, of the most confident objects, of all pairs
        ([CAT, DOG], [clause("cat"), RIGHT_DOG], {}, []),
        (
            [CAT, DOG],
            [clause("dog"), clause("cat", position=["right of", 0])],
            {},
            ["cat: position right of, found left of"],
        ),
        (
            [CAT, ("dog", 0.9, CAT[2])],
            [clause("cat"), clause("dog", position=["above", 0])],
            {},
            ["dog: position above, found no relation"],
        ),
        ([BEYOND, CAT, DOG], [clause("cat"), RIGHT_DOG], {}, []),
        ([CAT, BEYOND, DOG], [clause("cat", 2), RIGHT_DOG], {}, ["dog: position right of, found left of"]),
        ([DOG], [clause("cat"), RIGHT_DOG], {}, ["cat: include 1, found 0", "dog: target right of, found no target"]),
        (  # a target of another colour is none
            [CAT, DOG],
            [RED_CAT, RIGHT_DOG],
            {"colours": {("cat", 0): "blue"}},
            ["cat: color 1 red, found 1 blue", "dog: target right of, found no target"],
        ),
        (  # place is not asked of objects of another colour
            [CAT, DOG],
            [clause("cat"), clause("dog", color="red", position=["above", 0])],
            {"colours": {("dog", 1): "blue"}},
            ["dog: color 1 red, found 1 blue"],
        ),
    ],
)
def test_verdicts(rows, include, more, reasons):
    verdict = decide(rows, *include, **more)
    assert [str(reason) for reason in verdict.reasons] == reasons
    assert verdict.correct == (not reasons)
    assert verdict.num_objects == sum(score > 0.3 for _, score, _ in rows)


# Graded


@pytest.mark.parametrize(
    ("rows", "include", "colours", "parts"),
    [
        ([], [clause("cat")], {}, [0]),
        (THREE, [clause("cat", 3)], {}, [1]),
        (THREE, [clause("cat", 2)], {}, [1 / 2]),  # one too many of two
        (THREE, [clause("cat")], {}, [-1]),  # 1 - 2 / 1
        (THREE, [clause("cat", 4)], {}, [3 / 4]),
        (THREE, [clause("cat", 3), clause("dog")], {}, [1, 0]),
        # colour: a part of its own, 0 with a wrong number of objects
        (THREE[:1], [RED_CAT], {("cat", 0): "red"}, [1, 1]),
        (THREE[:1], [RED_CAT], {("cat", 0): "blue"}, [1, 0]),
        (THREE[:2], [RED_CAT], {("cat", 0): "red"}, [0, 0]),
        (
            THREE,
            [clause("cat", 3, color="red")],
            {("cat", 0): "white", ("cat", 1): "red", ("cat", 2): "red"},
            [1, 2 / 3],
        ),
        # position: 1, or 0 and 1 if it is wrong; 0 without a target or with a wrong number
        ([CAT, DOG], [clause("cat"), RIGHT_DOG], {}, [1, 1, 1]),
        ([CAT, DOG], [clause("dog"), clause("cat", position=["right of", 0])], {}, [1, 1, 0, 1]),
        ([CAT, BEYOND, DOG], [clause("cat"), RIGHT_DOG], {}, [0, 1, 0]),
        ([CAT], [clause("cat"), RIGHT_DOG], {}, [1, 0, 0]),
        # a place is not asked of objects of another colour
        (
            [CAT, DOG],
            [clause("cat"), clause("dog", color="red", position=["above", 0])],
            {("dog", 1): "blue"},
            [1, 1, 0],
        ),
    ],
)
def test_the_graded_reward_is_the_mean_of_its_parts(rows, include, colours, parts):
    assert decide(rows, *include, colours=colours).graded == pytest.approx(sum(parts) / len(parts))


def test_exclude_is_not_read_by_the_graded_reward():
    assert decide(THREE, clause("cat", 3), exclude=LIMIT).graded == 1


# Summary


def test_overall_is_the_plain_mean_of_the_tags():
    """Nine images of one tag weigh as much as one of another: 1/9 against 1."""
    tags = ["counting"] * 9 + [tag for tag in TAGS if tag != "counting"]
    values = np.array([1.0] + [0.0] * 8 + [1.0] * 5)
    means = tag_means(tags, values)
    assert list(means) == list(TAGS)
    assert means["counting"] == pytest.approx(1 / 9)
    assert overall(means) == pytest.approx((5 + 1 / 9) / 6)


def test_no_overall_without_all_six_tags():
    means = tag_means(["colors", "colors"], np.array([1.0, 0.0]))
    assert means == {"colors": 0.5}
    with pytest.raises(KeyError):
        overall(means)
