"""The answer and other sentences, from intervals worked out by hand."""

import math
import re
from dataclasses import replace
from itertools import starmap

import pytest

from chunk_grpo.reporting.sentences import effects_text, headline, verdicts_text
from chunk_grpo.reporting.statistics import Interval
from tests.reporting.test_comparisons import comparison


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        ([("a", 0.1, 0.2), ("b", 0.1, 0.2)], "Yes: the training reward rises."),
        ([("a", 0.1, 0.2), ("b", -0.1, 0.2)], "The training reward rises for a."),
        ([("a", 0.1, 0.2), ("b", -0.3, -0.2)], "The training reward rises for a; it falls for b."),
        ([("a", -0.1, 0.2), ("b", -0.1, 0.1)], "No improvement is shown."),
        ([("a", -0.1, 0.2), ("b", -0.2, -0.1)], "No improvement is shown; the training reward falls for b."),
        ([("a", -0.3, -0.2)], "No: the training reward falls."),
        ([("a", math.nan, math.nan)], "Too few prompts to tell."),
    ],
)
def test_the_answer_follows_from_the_intervals(found: list[tuple[str, float, float]], answer: str) -> None:
    assert headline([comparison(*one) for one in found])[0] == answer


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        ([("a", 0.1, 0.2)], "In this one training the training reward rises."),
        ([("a", -0.3, -0.2)], "In this one training the training reward falls."),
        ([("a", 0.1, 0.2), ("b", 0.1, 0.2)], "In these trainings, one of each variant, the training reward rises."),
        (
            [("a", 0.1, 0.2), ("b", -0.1, 0.2)],
            "In these trainings, one of each variant, the training reward rises for a.",
        ),
    ],
)
def test_single_training_gives_no_verdict(found: list[tuple[str, float, float]], answer: str) -> None:
    of_one = [replace(one, difference=replace(one.difference, num_seeds=1)) for one in starmap(comparison, found)]
    assert headline(of_one)[0] == answer


def test_a_rise_that_no_image_shows_is_no_yes() -> None:
    rises, stays, small = (comparison("a", 0.1, 0.2), comparison("b", -0.1, 0.2), comparison("c", 0.1, 0.2, 9.0))
    assert headline([rises], is_visible=False)[0] == ("The training reward rises, but the images below do not show it.")
    assert headline([stays], is_visible=False)[0] == "No improvement is shown."
    assert "images below" not in headline([small], is_visible=False)[0]


# A difference of 0.15 is 0.05 of a spread of 3, and 0.001 of a spread of 150.
@pytest.mark.parametrize(
    ("found", "answer"),
    [
        ([("a", 0.1, 0.2, 1.5)], "Yes: the training reward rises."),  # 0.1 exactly
        ([("a", 0.1, 0.2, 3.0)], "The training reward rises, but too little to see: 0.05 of {}."),
        ([("a", -0.2, -0.1, 150.0)], "The training reward falls, but too little to see: less than 0.01 of {}."),
        (
            [("a", 0.1, 0.2, 3.0), ("b", 0.1, 0.2, 15.0)],
            "The training reward rises, but too little to see: at most 0.05 of {}.",
        ),
        (
            [("a", 0.1, 0.2, 1.0), ("b", 0.1, 0.2, 3.0)],
            "The training reward rises for a; it rises for b, but too little to see: 0.05 of {}.",
        ),
        (
            [("a", -0.1, 0.2, 1.0), ("b", 0.1, 0.2, 3.0), ("c", -0.2, -0.1, 3.0)],
            "No improvement is shown; the training reward rises or falls for b and c, but too little to see: at most "
            "0.05 of {}.",
        ),
    ],
)
def test_a_positive_interval_may_be_too_small_to_see(found: list[tuple[str, float, float, float]], answer: str) -> None:
    spread = "the spread of the base’s images"
    assert headline([comparison(*one) for one in found])[0] == answer.format(spread)


def test_a_difference_has_as_many_digits_as_its_ends() -> None:
    small = Interval(0.0004, 0.0003, 0.0005, 0.1, 9.0, 3, 48, 40)
    assert effects_text([replace(comparison("a", 0, 1), difference=small)]) == (
        "a higher, +0.0004 (+0.0003\xa0to\xa0+0.0005), too small to see: less than 0.01 of the base’s spread"
    )


def test_the_sentence_gives_the_numbers() -> None:
    _, sentence = headline([comparison("chunk", 0.1, 0.2), comparison("dance", -0.1, 0.3)])
    numbers = re.findall(r"[+−]?\d+(?:\.\d+)?", sentence.replace("95 %", ""))
    assert numbers == ["48", "40", "3", "+0.150", "+0.100", "+0.200", "0.30", "+0.100", "−0.100", "+0.300"]


def test_variants_with_the_same_verdict_share_a_phrase() -> None:
    found = [comparison("a", 0.1, 0.2), comparison("b", -0.1, 0.3), comparison("c", 0.2, 0.3)]
    assert [part.split(" for ")[1] for part in verdicts_text(found).split("; ")] == ["a and c", "b"]
    small = comparison("d", 0.1, 0.2, 9.0)
    assert verdicts_text([*found, small]).endswith("; higher, but too little to see, for d")


def test_a_single_variant_has_its_numbers() -> None:
    found = [comparison("a", 0.1, 0.2)]
    assert (
        verdicts_text(found)
        == effects_text(found)
        == ("a higher, +0.150 (+0.100\xa0to\xa0+0.200), 0.30 of the base’s spread")
    )
