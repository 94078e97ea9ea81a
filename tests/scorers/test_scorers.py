"""Scorers on pictures made by hand, the weighted sum, and what is refused."""

import numpy as np
import pytest
from numpy.typing import NDArray

from chunk_grpo.errors import DataError
from chunk_grpo.image_files import as_pictures
from chunk_grpo.scorers.base import ScoreBatch, Scores, check_batch, check_scores
from chunk_grpo.scorers.reward import weighted_sum
from chunk_grpo.shapes.prompts import Demand, PromptSpec
from chunk_grpo.shapes.render import render
from chunk_grpo.shapes.scene import COLOURS, Scene, Thing
from tests.shapes_scorers import SHAPES_SCORERS, shapes_reward, shapes_scorer

RED_CIRCLE = PromptSpec("a red circle", "colors", (Demand("circle", colour="red"),))
TWO_SQUARES = PromptSpec("two squares", "counting", (Demand("square", count=2),), exact=True)
ABOVE = PromptSpec(
    "a cross above a circle", "position", (Demand("circle"), Demand("cross", relation="above"))
)

CIRCLE = Scene("white", (Thing("circle", "red", 16, 16, 5),))
SQUARE = Scene("black", (Thing("square", "blue", 10, 20, 5),))
SQUARES = Scene("white", (Thing("square", "green", 8, 8, 5), Thing("square", "blue", 24, 24, 5)))
STACK = Scene("black", (Thing("circle", "red", 16, 24, 5), Thing("cross", "purple", 16, 8, 5)))
UPSIDE_DOWN = Scene("black", (Thing("circle", "red", 16, 8, 5), Thing("cross", "purple", 16, 24, 5)))


def batch(*pairs: tuple[Scene, PromptSpec]) -> ScoreBatch:
    images = as_pictures(render([scene for scene, _ in pairs]).numpy())
    specs = [spec for _, spec in pairs]
    return ScoreBatch(
        images, [s.prompt for s in specs], [s.metadata() for s in specs], list(range(len(pairs)))
    )


def pictures(prompt: str, metadata: dict[str, object]) -> ScoreBatch:
    """A red circle, with whatever is said of it."""
    return ScoreBatch(as_pictures(render([CIRCLE]).numpy()), [prompt], [metadata], [0])


ALL = batch(
    (CIRCLE, RED_CIRCLE),
    (SQUARE, RED_CIRCLE),
    (SQUARES, TWO_SQUARES),
    (SQUARE, TWO_SQUARES),
    (STACK, ABOVE),
    (UPSIDE_DOWN, ABOVE),
)


def test_exact_is_one_where_the_picture_shows_the_prompt() -> None:
    scores = shapes_scorer("shapes-exact").score(ALL)
    assert scores.values.tolist() == [1, 0, 1, 0, 1, 0]
    assert scores.details["detections"].tolist() == [1, 1, 2, 1, 2, 2]


def test_graded_tells_nearly_right_from_wrong() -> None:
    values = shapes_scorer("shapes-graded").score(ALL).values
    assert ((values >= 0) & (values <= 1)).all()
    assert values[[0, 2, 4]].min() > 0.85
    # The square is neither a circle nor red; one of two squares is half; a relation turned round keeps the other half.
    assert values[1] < 0.1
    assert values[3] == pytest.approx(0.5, abs=0.06)
    assert values[5] == pytest.approx(0.5, abs=0.06)


def test_vivid_is_the_chroma_of_the_most_colourful_quarter() -> None:
    """A plain picture of one of the colours: largest minus smallest channel, whatever the prompt."""
    colours = np.array(list(COLOURS.values()), dtype=np.uint8)
    count = len(colours)
    images = np.broadcast_to(colours[:, None, None, :], (count, 32, 32, 3))
    plain = ScoreBatch(images, ["?"] * count, [{}] * count, [0] * count)
    values = shapes_scorer("shapes-vivid").score(plain).values
    assert values == pytest.approx([174 / 255, 210 / 255, 110 / 255, 170 / 255, 120 / 255], abs=1e-6)


@pytest.mark.parametrize("name", SHAPES_SCORERS)
def test_a_score_does_not_depend_on_the_batch(name: str) -> None:
    whole = shapes_scorer(name).score(ALL).values
    assert shapes_scorer(name, batch_size=4).score(ALL).values.tolist() == whole.tolist()
    for row, value in enumerate(whole):
        assert shapes_scorer(name).score(ALL.rows([row])).values.tolist() == [value]


def test_no_images_are_no_scores() -> None:
    scores = shapes_scorer("shapes-exact").score(ALL.rows([]))
    assert scores.values.shape == scores.details["detections"].shape == (0,)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (ScoreBatch(np.zeros((1, 4, 4, 3), np.float32), ["a"], [{}], [0]), "must be uint8"),  # type: ignore[arg-type]
        (ScoreBatch(np.zeros((1, 3, 4, 4), np.uint8), ["a"], [{}], [0]), r"got uint8 \(1, 3, 4, 4\)"),
        (ScoreBatch(np.zeros((4, 4, 3), np.uint8), ["a"], [{}], [0]), r"got uint8 \(4, 4, 3\)"),
        (ScoreBatch(np.zeros((1, 4, 4, 3), np.uint8), ["a", "b"], [{}], [0]), r"got \(1, 2, 1, 1\)"),
    ],
)
def test_a_batch_whose_parts_do_not_fit_is_refused(broken: ScoreBatch, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_batch(broken)
    with pytest.raises(ValueError, match=said):
        shapes_scorer("shapes-vivid").score(broken)


def test_the_reward_is_the_weighted_sum() -> None:
    reward = shapes_reward({"shapes-graded": 2.0, "shapes-vivid": 0.25})
    scores = reward.scores(ALL)
    graded, vivid = (shapes_scorer(name).score(ALL).values for name in ("shapes-graded", "shapes-vivid"))
    total = weighted_sum(scores, reward.weights)
    assert np.allclose(total, 2.0 * graded + 0.25 * vivid, rtol=0, atol=1e-15)
    assert list(scores) == ["shapes-graded", "shapes-vivid"]
    assert np.array_equal(scores["shapes-graded"], graded)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(DataError) as caught:
        check_scores("shapes-exact", Scores(np.array([0.0, value])), ["a", "b"])
    assert str(caught.value) == (
        f"scorer shapes-exact: image 1 of the batch ('b') got {value}; scores must be finite."
    )


@pytest.mark.parametrize("values", [np.zeros(2), np.zeros(4), np.zeros((3, 1))])
def test_a_short_answer_is_refused(values: NDArray[np.float64]) -> None:
    with pytest.raises(DataError, match=r"scorer shapes-exact: needs one value for each of 3 images, got \("):
        check_scores("shapes-exact", Scores(values), ["a", "b", "c"])


def test_a_detail_that_is_not_finite_or_short_is_refused() -> None:
    for detail in (np.array([0.0, np.nan]), np.zeros(1)):
        with pytest.raises(DataError, match=r"scorer shapes-exact: detail 'detections'"):
            check_scores("shapes-exact", Scores(np.zeros(2), {"detections": detail}), ["a", "b"])


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, "include: a non-empty list of demands is needed, got None"),
        ({"tag": "x", "include": []}, "include: a non-empty list of demands is needed, got []"),
        ({"tag": "x", "include": [{"class": "dog"}]}, "include.class: must be one of circle, square"),
        ({"tag": "x", "include": ["circle"]}, "include: "),
        ({"tag": "x", "include": [{"class": "circle", "position": 3}]}, "include.position: "),
    ],
)
@pytest.mark.parametrize("name", ["shapes-exact", "shapes-graded"])
def test_prompts_of_another_world_are_refused_by_name(
    name: str, metadata: dict[str, object], reason: str
) -> None:
    foreign = pictures("a photo of a dog", metadata)
    with pytest.raises(DataError) as caught:
        shapes_scorer(name).score(foreign)
    message = str(caught.value)
    assert message.startswith(f"scorer {name}: prompt 'a photo of a dog': {reason}")
    assert "needs prompts of the shapes world (prompts.source: shapes)" in message


def test_vivid_judges_any_prompt() -> None:
    foreign = pictures("a photo of a dog", {})
    assert shapes_scorer("shapes-vivid").score(foreign).values.shape == (1,)
