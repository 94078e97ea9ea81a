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
    threshold: float = 0.3,
) -> Verdict:
    detections = seen(*rows)
    record = parse_record({"tag": "two_object", "include": list(include), "exclude": list(exclude)})
    return judge(record, found_objects(detections, threshold, 16), detections.boxes, colours or {}, 0.1)


def lines(verdict: Verdict) -> list[str]:
    return [str(reason) for reason in verdict.reasons]


# Which detections count


def test_a_score_must_be_greater_than_the_threshold() -> None:
    at = np.float32(0.3)
    rows = many(
        "cat", float(np.nextafter(at, np.float32(1))), float(at), float(np.nextafter(at, np.float32(0)))
    )
    assert found_objects(seen(*rows), 0.3, 16) == {"cat": [0]}


def test_most_confident_first_and_at_most_so_many_of_each_class() -> None:
    rows = many("cat", 0.5, 0.9, 0.7, 0.4, 0.1) + many("dog", 0.6)
    assert found_objects(seen(*rows), 0.3, 16) == {"cat": [1, 2, 0, 3], "dog": [5]}
    assert found_objects(seen(*rows), 0.3, 2) == {"cat": [1, 2], "dog": [5]}


def test_of_equal_scores_the_later_detection_comes_first() -> None:
    assert found_objects(seen(*many("cat", 0.5, 0.5, 0.5)), 0.3, 2) == {"cat": [2, 1]}


def test_overlapping_objects_all_count() -> None:
    """Three times the same box."""
    assert decide(many("cat", 0.9, 0.8, 0.7), clause("cat", 3)).correct


def test_no_detections() -> None:
    verdict = decide([], clause("cat"))
    assert lines(verdict) == ["cat: include 1, found 0"]
    assert verdict.num_objects == 0


# include and exclude


def test_more_objects_than_demanded_are_no_fault() -> None:
    verdict = decide(many("cat", 0.9, 0.8, 0.7), clause("cat", 2))
    assert verdict.correct
    assert verdict.num_objects == 3


def test_fewer_objects_than_demanded() -> None:
    assert lines(decide(many("cat", 0.9, 0.2), clause("cat", 2))) == ["cat: include 2, found 1"]


def test_exclude_counts_from_its_number_on() -> None:
    limit = [clause("cat", 3)]
    assert decide(many("cat", 0.9, 0.8), clause("cat", 2), exclude=limit).correct
    verdict = decide(many("cat", 0.9, 0.8, 0.7), clause("cat", 2), exclude=limit)
    assert lines(verdict) == ["cat: exclude fewer than 3, found 3"]
    # Only what counts: a third below the threshold is none.
    assert decide(many("cat", 0.9, 0.8, 0.25), clause("cat", 2), exclude=limit).correct


def test_every_clause_is_judged() -> None:
    verdict = decide(many("dog", 0.9), clause("cat"), clause("bird"), exclude=[clause("dog")])
    assert [reason.rule for reason in verdict.reasons] == ["include", "include", "exclude"]
    assert not verdict.correct


# color


def test_colours_are_asked_of_the_most_confident_objects_of_clauses_with_enough() -> None:
    detections = seen(*many("cat", 0.5, 0.9, 0.8), *many("dog", 0.6))
    found = found_objects(detections, 0.3, 16)
    include = [clause("cat", 2, color="red"), clause("dog", 2, color="red"), clause("cat")]
    record = parse_record({"tag": "colors", "include": include})
    assert asked_colours(record, found) == [("cat", 1), ("cat", 2)]
    exactly = parse_record({"tag": "colors", "include": [clause("dog", 1, color="red")]})
    assert asked_colours(exactly, found) == [("dog", 3)]


def test_colour_of_the_most_confident_object_decides() -> None:
    rows = many("cat", 0.5, 0.9)
    red = clause("cat", color="red")
    assert decide(rows, red, colours={("cat", 1): "red"}).correct
    assert lines(decide(rows, red, colours={("cat", 1): "blue"})) == ["cat: color 1 red, found 1 blue"]


def test_as_many_of_the_colour_as_demanded() -> None:
    rows = many("cat", 0.9, 0.8, 0.7)
    colours = {("cat", 0): "white", ("cat", 1): "red", ("cat", 2): "red"}
    verdict = decide(rows, clause("cat", 3, color="red"), colours=colours)
    assert lines(verdict) == ["cat: color 3 red, found 2 red, 1 white"]


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
def test_relations(box: tuple[float, ...], expected: tuple[str, ...]) -> None:
    target = np.array([100, 100, 110, 110], dtype=np.float32)
    assert relations(np.array(box, dtype=np.float32), target, 0.1) == expected


@pytest.mark.parametrize(("offset", "expected"), [(0.0009, ()), (0.0011, ("right of",))])
def test_less_than_a_thousandth_of_a_pixel_is_no_relation(offset: float, expected: tuple[str, ...]) -> None:
    """Points, which have no margin."""
    point, target = np.array([[offset, 0, offset, 0], [0, 0, 0, 0]], dtype=np.float32)
    assert relations(point, target, 0.1) == expected


def test_margin_counts_each_axis_by_itself() -> None:
    """Wide boxes: 100 + 100 wide shorten x by 20, 10 + 10 high shorten y by 2; offset (30, 30)."""
    target, box = (0, 0, 100, 10), (30, 30, 130, 40)
    boxes = np.array([box, target], dtype=np.float32)
    assert relations(*boxes, 0.1) == ("below",)  # (10, 28) / 42.4: 0.24 and 0.66
    assert relations(*boxes, 0.0) == ("right of", "below")


CAT, DOG = ("cat", 0.9, (0.0, 0.0, 10.0, 10.0)), ("dog", 0.9, (100.0, 0.0, 110.0, 10.0))


def test_position_is_seen_from_the_earlier_clause() -> None:
    assert decide([CAT, DOG], clause("cat"), clause("dog", position=["right of", 0])).correct
    verdict = decide([CAT, DOG], clause("dog"), clause("cat", position=["right of", 0]))
    assert lines(verdict) == ["cat: position right of, found left of"]


def test_objects_at_one_place_have_no_relation() -> None:
    verdict = decide([CAT, ("dog", 0.9, CAT[2])], clause("cat"), clause("dog", position=["above", 0]))
    assert lines(verdict) == ["dog: position above, found no relation"]


def test_position_refers_to_the_most_confident_object() -> None:
    """A second cat, right of the dog, is less sure."""
    other = ("cat", 0.8, (200.0, 0.0, 210.0, 10.0))
    assert decide([other, CAT, DOG], clause("cat"), clause("dog", position=["right of", 0])).correct


def test_all_pairs_must_be_in_relation() -> None:
    near = ("cat", 0.8, (200.0, 0.0, 210.0, 10.0))
    verdict = decide([CAT, near, DOG], clause("cat", 2), clause("dog", position=["right of", 0]))
    assert lines(verdict) == ["dog: position right of, found left of"]


def test_position_without_a_target() -> None:
    verdict = decide([DOG], clause("cat"), clause("dog", position=["right of", 0]))
    assert lines(verdict) == ["cat: include 1, found 0", "dog: target right of, found no target"]


def test_a_target_of_another_colour_is_none() -> None:
    verdict = decide(
        [CAT, DOG],
        clause("cat", color="red"),
        clause("dog", position=["right of", 0]),
        colours={("cat", 0): "blue"},
    )
    assert [reason.rule for reason in verdict.reasons] == ["color", "target"]


def test_place_is_not_asked_of_objects_of_another_colour() -> None:
    verdict = decide(
        [CAT, DOG],
        clause("cat"),
        clause("dog", color="red", position=["above", 0]),
        colours={("dog", 1): "blue"},
    )
    assert [reason.rule for reason in verdict.reasons] == ["color"]


# Summary


def test_overall_is_the_plain_mean_of_the_tags() -> None:
    """Nine images of one tag weigh as much as one of another: 1/9 against 1."""
    tags = ["counting"] * 9 + [tag for tag in TAGS if tag != "counting"]
    values = np.array([1.0] + [0.0] * 8 + [1.0] * 5)
    means = tag_means(tags, values)
    assert list(means) == list(TAGS)
    assert means["counting"] == pytest.approx(1 / 9)
    assert overall(means) == pytest.approx((5 + 1 / 9) / 6)


def test_no_overall_without_all_six_tags() -> None:
    means = tag_means(["colors", "colors"], np.array([1.0, 0.0]))
    assert means == {"colors": 0.5}
    with pytest.raises(ValueError, match="none of single_object, two_object, counting, position, color_attr"):
        overall(means)


def test_tags_are_checked() -> None:
    with pytest.raises(ValueError, match="one for each of 2 images, got 1"):
        tag_means(["colors"], np.zeros(2))
    with pytest.raises(ValueError, match="got spelling"):
        tag_means(["colors", "spelling"], np.zeros(2))
