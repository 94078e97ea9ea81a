"""Edits are unambiguous, and their judge sees what was asked, what was kept and what was added."""

import json
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from chunk_grpo.shapes.edit_judge import TOLERANCE, graded_edit, judge_edit
from chunk_grpo.shapes.edits import EDIT_KINDS, Edit, all_instructions, draw_edit, parse_edit
from chunk_grpo.shapes.render import render
from chunk_grpo.shapes.scene import COLOURS, SHAPES, Scene, Thing

CIRCLE = Thing("circle", "red", 8.0, 8.0, 5.0)
SQUARE = Thing("square", "blue", 23.0, 22.0, 5.5)
SOURCE = Scene("white", (CIRCLE, SQUARE))
RECOLOUR = Edit("make the circle green", "recolour", "green", SOURCE)
REPLACE = Edit("make the circle a cross", "replace", "cross", SOURCE)
REMOVE = Edit("remove the circle", "remove", None, SOURCE)
GREEN, CROSS = replace(CIRCLE, colour="green"), replace(CIRCLE, shape="cross")


def picture(*things: Thing, background: str = "white") -> np.ndarray:
    return render([Scene(background, things)])[0].numpy()


def test_instructions_differ_and_their_words_fit_the_text_encoder() -> None:
    """100 colours (with a colour in the name one fewer to choose), 72 shapes, 24 removals."""
    instructions = all_instructions()
    assert len({i.prompt for i in instructions}) == len(instructions)
    assert Counter(i.kind for i in instructions) == {"recolour": 20 + 80, "replace": 12 + 60, "remove": 4 + 20}
    assert max(len(i.prompt.split()) for i in instructions) == 6
    assert {i.to for i in instructions} == {None, *COLOURS, *SHAPES}
    for kind in EDIT_KINDS:
        held_out = [i.held_out for i in instructions if i.kind == kind]
        assert 0.15 < sum(held_out) / len(held_out) < 0.35


def test_every_drawn_edit_is_unambiguous_and_its_result_is_judged_right() -> None:
    rng = random.Random(0)
    pairs = [(i, draw_edit(i, rng)) for i in all_instructions()]
    results, sources = (render([getattr(edit, name) for _, edit in pairs]).numpy() for name in ("result", "source"))
    for (instruction, edit), result, source in zip(pairs, results, sources, strict=True):
        named = [instruction.fits(thing.shape, thing.colour) for thing in edit.source.things]
        assert named == [True] + [False] * (len(named) - 1), edit
        assert edit.wanted != edit.source.things[0]
        assert judge_edit(result, edit).fault is None, edit
        verdict = judge_edit(source, edit)
        assert verdict.asked is not None and verdict.kept is None, edit
    for _, edit in pairs[::8]:
        result, source = render([edit.result, edit.source]).numpy()
        assert graded_edit(result, edit) > 0.8 > graded_edit(source, edit)
    assert {len(edit.source.things) for _, edit in pairs} == {2, 3}


def test_metadata_survives_json() -> None:
    rng = random.Random(1)
    for instruction in all_instructions():
        edit = draw_edit(instruction, rng)
        assert parse_edit(edit.prompt, json.loads(json.dumps(edit.metadata()))) == edit


@pytest.mark.parametrize(
    ("edit", "things", "asked", "kept"),
    [
        (RECOLOUR, (GREEN, SQUARE), None, None),
        (REPLACE, (CROSS, SQUARE), None, None),
        (REMOVE, (SQUARE,), None, None),
        (RECOLOUR, (CIRCLE, SQUARE), "green circle read as red circle", None),
        (REPLACE, (CIRCLE, SQUARE), "red cross read as red circle", None),
        (REMOVE, (CIRCLE, SQUARE), "red circle still there", None),
        (RECOLOUR, (replace(CIRCLE, colour="purple"), SQUARE), "green circle read as purple circle", None),
        (REPLACE, (replace(CROSS, colour="blue"), SQUARE), "red cross read as blue cross", None),
        (RECOLOUR, (GREEN, SQUARE, Thing("cross", "red", 24.0, 8.0, 5.0)), None, "red cross added"),
        (RECOLOUR, (GREEN,), None, "no blue square"),
        (RECOLOUR, (GREEN, replace(SQUARE, colour="red")), None, "blue square read as red square"),
        (RECOLOUR, (GREEN, replace(SQUARE, shape="circle")), None, "blue square read as blue circle"),
        (RECOLOUR, (GREEN, replace(SQUARE, x=SQUARE.x - 3)), None, "edge of blue square off by 3.0 pixels"),
        (RECOLOUR, (GREEN, replace(SQUARE, x=SQUARE.x - 1.5)), None, None),
        (RECOLOUR, (GREEN, replace(SQUARE, radius=3.0)), None, "edge of blue square off by 2.5 pixels"),
        (RECOLOUR, (replace(GREEN, y=10.5), SQUARE), "edge of green circle off by 2.5 pixels", None),
        (RECOLOUR, (replace(GREEN, x=23.0, y=8.0), SQUARE), "no green circle", "green circle added"),
    ],
)  # fmt: skip
def test_the_first_fault_is_named(edit: Edit, things: tuple[Thing, ...], asked: str | None, kept: str | None) -> None:
    assert TOLERANCE == 2.0
    image = picture(*things)
    verdict = judge_edit(image, edit)
    assert (verdict.asked, verdict.kept) == (asked, kept)
    assert verdict.fault == (asked or kept)


def test_a_blank_image_and_another_background_are_wrong() -> None:
    blank = np.full((3, 32, 32), 245 / 255)
    assert judge_edit(blank, RECOLOUR).fault == "no green circle"
    assert judge_edit(blank, REMOVE).fault == "no blue square"
    assert graded_edit(blank, RECOLOUR) == graded_edit(blank, REMOVE) == 0
    dark = picture(GREEN, SQUARE, background="black")
    assert judge_edit(dark, RECOLOUR).fault == "background black, not white"
    assert graded_edit(dark, RECOLOUR) == 0


def test_two_halves_of_a_thing_are_not_the_thing() -> None:
    image = picture(GREEN, SQUARE)
    image[:, 7:9] = 245 / 255
    assert judge_edit(image, RECOLOUR).asked == "2 things in the place of green circle"


def test_grades_by_hand() -> None:
    """A thing 2 pixels off keeps exp(-1/2); an added one takes a tenth; half of two others gone, half of the grade."""
    right = graded_edit(picture(GREEN, SQUARE), RECOLOUR)
    assert 0.95 < right <= 1
    moved = graded_edit(picture(GREEN, replace(SQUARE, x=SQUARE.x - 2)), RECOLOUR)
    assert moved / right == pytest.approx(np.exp(-0.5), abs=0.03)
    added = graded_edit(picture(GREEN, SQUARE, Thing("cross", "red", 24.0, 8.0, 5.0)), RECOLOUR)
    assert added == pytest.approx(0.9 * right, rel=1e-6)
    three = replace(RECOLOUR, source=replace(SOURCE, things=(*SOURCE.things, Thing("cross", "red", 24.0, 8.0, 5.0))))
    assert graded_edit(picture(GREEN, SQUARE), three) == pytest.approx(right / 2, abs=0.02)


def test_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be \[3, 32, 32\], .* got \(3, 64, 64\)"):
        judge_edit(np.zeros((3, 64, 64)), RECOLOUR)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tag": "move"}, "tag: must be one of recolour, replace, remove, got 'move'"),
        ({"to": "cross"}, "to: must be one of red, .* for recolour, got 'cross'"),
        ({"source": None}, "source: must be a scene on one of white, black, got None"),
        ({"source": {"background": "white", "things": []}}, "source.things: a non-empty list"),
        ({"source": {"background": "white", "things": [{"shape": "circle"}]}}, "each needs shape, colour, x, y and"),
        (
            {"source": {"background": "white", "things": [dict.fromkeys(("shape", "colour", "x", "y", "radius"), 1)]}},
            "shapes are circle, square",
        ),
    ],
)  # fmt: skip
def test_a_wrong_record_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_edit(RECOLOUR.prompt, RECOLOUR.metadata() | change)
