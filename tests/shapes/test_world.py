"""The world is consistent: captions say what scenes show, and detectors read what renderers draw."""

import random
from collections import Counter

import numpy as np
import pytest

from chunk_grpo.shapes.detect import detect
from chunk_grpo.shapes.judge import exact_score, graded_score, relation_margins, vividness
from chunk_grpo.shapes.layout import sample_scene
from chunk_grpo.shapes.prompts import CATEGORIES, Demand, PromptSpec, all_prompts, knowledge_prompts, parse_metadata
from chunk_grpo.shapes.render import render
from chunk_grpo.shapes.scene import COLOURS, SHAPES, Scene, Thing


def picture(*things: Thing, background: str = "white") -> np.ndarray:
    return render([Scene(background, things)])[0].numpy()


def red_circle(x: float = 24.0, y: float = 24.0) -> Thing:
    return Thing("circle", "red", x, y, 8.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_drawn_area_is_the_shape_s_area(shape: str) -> None:
    image = picture(Thing(shape, "blue", 24, 24, 8))
    blue, white = np.array(COLOURS["blue"]) / 255, np.full(3, 245 / 255)
    cover = (image - white[:, None, None])[0] / (blue - white)[0]
    area = {"circle": np.pi * 64, "square": 256.0, "triangle": 128.0, "cross": 256 * (1 / 3 + 1 / 3 - 1 / 9)}[shape]
    assert cover.sum() == pytest.approx(area, rel=0.02)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("background", ["white", "grey", "black"])
def test_detector_reads_every_thing_on_every_background(shape: str, colour: str, background: str) -> None:
    (found,) = detect(picture(Thing(shape, colour, 20.3, 27.8, 6.2), background=background))
    assert (found.shape, found.colour) == (shape, colour)
    assert found.confidence > 0.75
    assert found.centre == pytest.approx((20.3, 27.8), abs=1.0)


def test_every_caption_holds_in_the_scenes_drawn_for_it() -> None:
    rng = random.Random(0)
    specs = all_prompts() + knowledge_prompts()
    images = render([sample_scene(spec, rng) for spec in specs]).numpy()
    wrong = [spec.prompt for spec, image in zip(specs, images) if not exact_score(detect(image), spec)]
    assert wrong == []


def test_captions_are_unique_and_split_by_content() -> None:
    prompts = all_prompts()
    assert len({spec.prompt for spec in prompts}) == len(prompts)
    held_out = Counter(spec.category for spec in prompts if spec.held_out)
    for category in CATEGORIES:
        total = sum(spec.category == category for spec in prompts)
        assert 0.1 < held_out[category] / total < 0.4
    shown = {spec.demands for spec in prompts if not spec.held_out and spec.category == "color_attr"}
    hidden = {spec.demands for spec in prompts if spec.held_out and spec.category == "color_attr"}
    assert shown.isdisjoint(hidden)


def test_metadata_is_geneval_s_and_survives_the_round_trip() -> None:
    spec = next(s for s in all_prompts() if s.prompt == "a circle left of a square")
    assert spec.metadata() == {
        "tag": "position",
        "include": [{"class": "square", "count": 1}, {"class": "circle", "count": 1, "position": ["left of", 0]}],
        "prompt": "a circle left of a square",
    }
    for spec in all_prompts() + knowledge_prompts():
        assert parse_metadata(spec.metadata()) == spec


def test_unknown_class_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"include\.class: must be one of .*, got 'dog'"):
        parse_metadata({"tag": "x", "prompt": "a dog", "include": [{"class": "dog", "count": 1}]})


def test_exact_rules() -> None:
    one = detect(picture(red_circle()))
    two = detect(picture(red_circle(12, 12), Thing("circle", "blue", 36, 12, 8)))
    circle = PromptSpec("a circle", "single_object", (Demand("circle"),))
    assert exact_score(one, circle) and exact_score(two, circle)  # more of a class is allowed unless counting
    exactly_one = PromptSpec("one", "counting", (Demand("circle", 1),), exact=True)
    assert exact_score(one, exactly_one) and not exact_score(two, exactly_one)
    assert not exact_score(one, PromptSpec("two", "counting", (Demand("circle", 2),), exact=True))
    assert not exact_score(one, PromptSpec("blue", "colors", (Demand("circle", colour="blue"),)))
    assert exact_score(two, PromptSpec("blue", "colors", (Demand("circle", colour="blue"),)))


def test_relation_margins_by_hand() -> None:
    left, right = sorted(detect(picture(red_circle(10, 20), red_circle(38, 30))), key=lambda d: d.centre)
    # Offset (-28, -10); slack 0.1 * (16 + 16) = 3.2 on each axis: (-24.8, -6.8), length 25.715.
    margins = relation_margins(left, right)
    assert margins["left of"] == pytest.approx(24.8 / 25.715, abs=0.01)
    assert margins["above"] == pytest.approx(6.8 / 25.715, abs=0.02)
    assert margins["below"] == -margins["above"]


def test_grade_orders_pictures_as_one_would() -> None:
    spec = PromptSpec("a red circle", "colors", (Demand("circle", colour="red"),))
    right = graded_score(detect(picture(red_circle())), spec)
    orange = graded_score(detect(picture(Thing("circle", "orange", 24, 24, 8))), spec)
    square = graded_score(detect(picture(Thing("square", "red", 24, 24, 8))), spec)
    cluttered = graded_score(detect(picture(red_circle(12, 12), Thing("cross", "blue", 36, 36, 8))), spec)
    nothing = graded_score(detect(picture(Thing("circle", "red", 24, 24, 1))), spec)
    assert right > 0.9 > cluttered > square > orange > nothing == 0.0
    assert cluttered == pytest.approx(0.9 * right, rel=0.05)


def test_vividness_by_hand() -> None:
    image = np.zeros((3, 4, 4))
    image[0, 0, :2] = 1.0  # two of sixteen pixels are pure red; a quarter is four pixels
    assert vividness(image) == pytest.approx(0.5)
