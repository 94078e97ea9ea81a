"""Scorers on pictures made by hand, the weighted sum, and what is refused."""

import numpy as np
import pytest
from numpy.typing import NDArray

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.scorers.base import ScoreBatch, Scores, check_scores, spec_hash
from chunk_grpo.scorers.registry import SCORERS, Reward, make_scorer
from chunk_grpo.shapes.prompts import Demand, PromptSpec
from chunk_grpo.shapes.render import render
from chunk_grpo.shapes.scene import COLOURS, Scene, Thing

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
    images = render([scene for scene, _ in pairs]).numpy()
    return ScoreBatch(images, [spec.prompt for _, spec in pairs], [spec.metadata() for _, spec in pairs])


ALL = batch(
    (CIRCLE, RED_CIRCLE),
    (SQUARE, RED_CIRCLE),
    (SQUARES, TWO_SQUARES),
    (SQUARE, TWO_SQUARES),
    (STACK, ABOVE),
    (UPSIDE_DOWN, ABOVE),
)


def test_exact_is_one_where_the_picture_shows_the_prompt() -> None:
    scores = make_scorer("shapes-exact").score(ALL)
    assert scores.values.tolist() == [1, 0, 1, 0, 1, 0]
    assert scores.details["detections"].tolist() == [1, 1, 2, 1, 2, 2]


def test_graded_tells_nearly_right_from_wrong() -> None:
    values = make_scorer("shapes-graded").score(ALL).values
    assert ((values >= 0) & (values <= 1)).all()
    assert values[[0, 2, 4]].min() > 0.85
    # The square is neither a circle nor red; one of two squares is half; a relation turned round keeps the other half.
    assert values[1] < 0.1
    assert values[3] == pytest.approx(0.5, abs=0.06)
    assert values[5] == pytest.approx(0.5, abs=0.06)


def test_vivid_is_the_chroma_of_the_most_colourful_quarter() -> None:
    """A plain picture of one of the colours: largest minus smallest channel, whatever the prompt."""
    colours = np.array(list(COLOURS.values()), dtype=np.float32) / 255
    images: NDArray[np.float32] = np.broadcast_to(colours[:, :, None, None], (len(colours), 3, 32, 32))
    count = len(colours)
    values = make_scorer("shapes-vivid").score(ScoreBatch(images, ["?"] * count, [{}] * count)).values
    assert values == pytest.approx([174 / 255, 210 / 255, 110 / 255, 170 / 255, 120 / 255], abs=1e-6)


@pytest.mark.parametrize("name", SCORERS)
def test_a_score_does_not_depend_on_the_batch(name: str) -> None:
    scorer = make_scorer(name)
    whole = scorer.score(ALL).values
    for row, value in enumerate(whole):
        one = ScoreBatch(ALL.images[row : row + 1], ALL.prompts[row : row + 1], ALL.metadata[row : row + 1])
        assert scorer.score(one).values.tolist() == [value]


def test_every_scorer_has_the_name_it_is_known_by_and_its_own_hash() -> None:
    assert {name: make_scorer(name).name for name in SCORERS} == {name: name for name in SCORERS}
    assert len({spec_hash(make_scorer(name)) for name in SCORERS}) == len(SCORERS)


def test_a_new_version_is_another_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = make_scorer("shapes-exact")
    before = spec_hash(scorer)
    monkeypatch.setattr(type(scorer), "version", scorer.version + 1)
    assert spec_hash(scorer) != before


def test_the_reward_is_the_weighted_sum() -> None:
    scores = Reward({"shapes-graded": 2.0, "shapes-vivid": 0.25}).score(ALL)
    graded, vivid = (make_scorer(name).score(ALL).values for name in ("shapes-graded", "shapes-vivid"))
    assert np.allclose(scores.values, 2.0 * graded + 0.25 * vivid, rtol=0, atol=1e-15)
    assert list(scores.details) == ["shapes-graded", "shapes-vivid"]
    assert np.array_equal(scores.details["shapes-graded"], graded)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(DataError) as caught:
        check_scores(make_scorer("shapes-exact"), Scores(np.array([0.0, value])), ["a", "b"])
    assert str(caught.value) == (
        f"scorer shapes-exact: image 1 of the batch ('b') got {value}; scores must be finite."
    )


@pytest.mark.parametrize("values", [np.zeros(2), np.zeros(4), np.zeros((3, 1))])
def test_a_short_answer_is_refused(values: NDArray[np.float64]) -> None:
    with pytest.raises(DataError, match=r"scorer shapes-exact: needs one value for each of 3 images, got \("):
        check_scores(make_scorer("shapes-exact"), Scores(values), ["a", "b", "c"])


def test_a_detail_that_is_not_finite_or_short_is_refused() -> None:
    for detail in (np.array([0.0, np.nan]), np.zeros(1)):
        with pytest.raises(DataError, match=r"scorer shapes-exact: detail 'detections'"):
            check_scores(make_scorer("shapes-exact"), Scores(np.zeros(2), {"detections": detail}), ["a", "b"])


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
    foreign = ScoreBatch(render([CIRCLE]).numpy(), ["a photo of a dog"], [metadata])
    with pytest.raises(DataError) as caught:
        make_scorer(name).score(foreign)
    message = str(caught.value)
    assert message.startswith(f"scorer {name}: prompt 'a photo of a dog': {reason}")
    assert "judges prompts of the shapes world (prompts.source: shapes)" in message


def test_vivid_judges_any_prompt() -> None:
    foreign = ScoreBatch(render([CIRCLE]).numpy(), ["a photo of a dog"], [{}])
    assert make_scorer("shapes-vivid").score(foreign).values.shape == (1,)


def test_an_unknown_scorer_is_a_configuration_error() -> None:
    known = "shapes-exact, shapes-graded, shapes-vivid"
    with pytest.raises(ConfigError) as caught:
        make_scorer("shapes-exakt")
    assert str(caught.value) == f"scorers: unknown scorer 'shapes-exakt'; known are {known}"
    with pytest.raises(ConfigError):
        Reward({"shapes-exakt": 1.0})
