"""The world is consistent: captions say what scenes show, and detectors read what renderers draw."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from chunk_grpo.shapes.detect import detect
from chunk_grpo.shapes.judge import broken_rule, exact_score, graded_score, relation_margins, vividness
from chunk_grpo.shapes.layout import sample_scene
from chunk_grpo.shapes.prompts import CATEGORIES, Demand, PromptSpec, all_prompts, knowledge_prompts, parse_metadata
from chunk_grpo.shapes.render import render
from chunk_grpo.shapes.scene import COLOURS, SHAPES, Scene, Thing


def picture(*things: Thing, background: str = "white") -> np.ndarray:
    return render([Scene(background, things)])[0].numpy()


def red_circle(x: float = 16.0, y: float = 16.0) -> Thing:
    return Thing("circle", "red", x, y, 5.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_drawn_area_is_the_shape_s_area(shape):
    image = picture(Thing(shape, "blue", 16, 16, 8))
    blue, white = np.array(COLOURS["blue"]) / 255, np.full(3, 245 / 255)
    cover = (image - white[:, None, None])[0] / (blue - white)[0]
    area = {"circle": np.pi * 64, "square": 256.0, "triangle": 128.0, "cross": 256 * (1 / 3 + 1 / 3 - 1 / 9)}[shape]
    assert cover.sum() == pytest.approx(area, rel=0.02)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("background", ["white", "black"])
def test_detector_reads_every_thing_on_every_background(shape, colour, background):
    (found,) = detect(picture(Thing(shape, colour, 12.3, 19.8, 4.7), background=background))
    assert (found.shape, found.colour) == (shape, colour)
    assert found.confidence > 0.9
    assert found.centre == pytest.approx((12.3, 19.8), abs=0.2)


@pytest.mark.parametrize("left_to_right", [False, True])
def test_every_caption_holds_in_the_scenes_drawn_for_it(left_to_right):
    rng = random.Random(0)
    specs = all_prompts() + knowledge_prompts()
    images = render([sample_scene(spec, rng, left_to_right=left_to_right) for spec in specs]).numpy()
    wrong = [spec.prompt for spec, image in zip(specs, images, strict=True) if not exact_score(detect(image), spec)]
    assert wrong == []


def test_different_shapes_can_follow_caption_order():
    rng = random.Random(0)
    specs = [spec for spec in all_prompts() if spec.category in ("two_object", "color_attr")]
    free = [sample_scene(spec, rng).things for spec in specs]
    ordered = [sample_scene(spec, rng, left_to_right=True).things for spec in specs]
    assert all(second.x - second.radius > first.x + first.radius for first, second in ordered)
    assert 0.3 < sum(first.x < second.x for first, second in free) / len(free) < 0.7


def test_captions_are_unique_and_split_by_content():
    prompts = all_prompts()
    assert len({spec.prompt for spec in prompts}) == len(prompts)
    held_out = Counter(spec.category for spec in prompts if spec.held_out)
    for category in CATEGORIES:
        total = sum(spec.category == category for spec in prompts)
        assert 0.1 < held_out[category] / total < 0.4
    shown = {spec.demands for spec in prompts if not spec.held_out and spec.category == "color_attr"}
    hidden = {spec.demands for spec in prompts if spec.held_out and spec.category == "color_attr"}
    assert shown.isdisjoint(hidden)


def test_metadata_is_geneval_s_and_survives_the_round_trip():
    spec = next(s for s in all_prompts() if s.prompt == "a circle left of a square")
    assert spec.metadata() == {
        "tag": "position",
        "include": [{"class": "square", "count": 1}, {"class": "circle", "count": 1, "position": ["left of", 0]}],
        "prompt": "a circle left of a square",
    }
    for spec in all_prompts() + knowledge_prompts():
        assert parse_metadata(spec.metadata()) == spec


def test_unknown_class_is_refused_by_name():
    with pytest.raises(ValueError, match=r"include\.class: must be one of .*, got 'dog'"):
        parse_metadata({"tag": "x", "prompt": "a dog", "include": [{"class": "dog", "count": 1}]})


@pytest.mark.parametrize(
    ("demands", "exact", "rule"),
    [
        ([Demand("circle", colour="red"), Demand("square")], False, None),
        ([Demand("circle", colour="blue")], False, "colour of circle read as red"),
        ([Demand("cross")], False, "no cross: read as circle, square"),
        ([Demand("circle", 2)], True, "1 circle, not 2"),
        ([Demand("circle", 0)], True, "1 circle, not 0"),
        ([Demand("circle", 0)], False, None),  # more of a class is allowed unless counting
        ([Demand("circle"), Demand("square", relation="above")], False, "square not above circle"),
        ([Demand("circle"), Demand("square", relation="right of")], False, None),
    ],
)
def test_the_broken_rule_is_named(demands, exact, rule):
    found = detect(picture(red_circle(8, 16), Thing("square", "blue", 24, 16, 5)))
    spec = PromptSpec("text", "position", tuple(demands), exact=exact)
    assert broken_rule(found, spec) == rule
    assert exact_score(found, spec) is (rule is None)


def test_an_empty_and_an_unclear_image_break_the_first_rule():
    spec = PromptSpec("a circle", "single_object", (Demand("circle"),))
    assert broken_rule([], spec) == "no circle: nothing found"
    (circle,) = detect(picture(red_circle()))
    unclear = replace(circle, overlaps=circle.overlaps * 0.7)
    assert broken_rule([unclear], spec) == "outline of circle unclear"


def test_relation_margins_by_hand():
    left, right = sorted(detect(picture(red_circle(6, 12), red_circle(26, 20))), key=lambda d: d.centre)
    # Offset (-20, -8); slack 0.1 * (10 + 10) = 2 on each axis: (-18, -6), length 18.974.
    margins = relation_margins(left, right)
    assert margins["left of"] == pytest.approx(18 / 18.974, abs=0.01)
    assert margins["above"] == pytest.approx(6 / 18.974, abs=0.02)
    assert margins["below"] == -margins["above"]


def test_graded_score_orders_pictures_by_correctness():
    spec = PromptSpec("a red circle", "colors", (Demand("circle", colour="red"),))
    right = graded_score(detect(picture(red_circle())), spec)
    purple = graded_score(detect(picture(Thing("circle", "purple", 16, 16, 5))), spec)
    square = graded_score(detect(picture(Thing("square", "red", 16, 16, 5))), spec)
    cluttered = graded_score(detect(picture(red_circle(8, 8), Thing("cross", "blue", 24, 24, 5))), spec)
    nothing = graded_score(detect(picture(Thing("circle", "red", 16, 16, 1))), spec)
    assert right > 0.9 > cluttered > square > purple > nothing == 0.0
    assert cluttered == pytest.approx(0.9 * right, rel=0.05)


def test_vividness_by_hand():
    image = np.zeros((3, 4, 4))
    image[0, 0, :2] = 1.0  # two of sixteen pixels are pure red; a quarter is four pixels
    assert vividness(image) == pytest.approx(0.5)
