"""The weighted sum, and what is refused."""

import numpy as np
import pytest

from chunk_grpo.errors import DataError
from chunk_grpo.image_files import as_pictures
from chunk_grpo.scorers.base import ScoreBatch, Scores, check_batch, check_scores
from chunk_grpo.scorers.reward import Reward, weighted_sum
from chunk_grpo.scorers.running.external import External
from chunk_grpo.shapes.prompts import Demand, PromptSpec
from chunk_grpo.shapes.render import render
from chunk_grpo.shapes.scene import Scene, Thing
from tests.scorers.odd_scorers import KEY, batch, settings
from tests.shapes_scorers import shapes_reward, shapes_scorer

RED_CIRCLE = PromptSpec("a red circle", "colors", (Demand("circle", colour="red"),))
SCENES = [
    Scene("white", (Thing("circle", "red", 16, 16, 5),)),
    Scene("black", (Thing("square", "blue", 10, 20, 5),)),
]


def pictures(prompt: str, metadata: dict[str, object]) -> ScoreBatch:
    """A red circle and a blue square, with whatever is said of them."""
    return ScoreBatch(as_pictures(render(SCENES).numpy()), [prompt] * 2, [metadata] * 2, [0, 1])


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (ScoreBatch(np.zeros((1, 4, 4, 3), np.float32), ["a"], [{}], [0]), "must be uint8"),
        (ScoreBatch(np.zeros((1, 3, 4, 4), np.uint8), ["a"], [{}], [0]), r"got uint8 \(1, 3, 4, 4\)"),
        (ScoreBatch(np.zeros((4, 4, 3), np.uint8), ["a"], [{}], [0]), r"got uint8 \(4, 4, 3\)"),
        (ScoreBatch(np.zeros((1, 4, 4, 3), np.uint8), ["a", "b"], [{}], [0]), r"got \(1, 2, 1, 1\)"),
    ],
)
def test_a_batch_whose_parts_do_not_fit_is_refused(broken, said):
    with pytest.raises(ValueError, match=said):
        check_batch(broken)
    with pytest.raises(ValueError, match=said):
        shapes_scorer("shapes-vivid").score(broken)


def test_the_reward_is_the_weighted_sum():
    reward = shapes_reward({"shapes-graded": 2.0, "shapes-vivid": 0.25})
    batch = pictures(RED_CIRCLE.prompt, dict(RED_CIRCLE.metadata()))
    scores = reward.scores(batch)
    graded, vivid = (shapes_scorer(name).score(batch).values for name in ("shapes-graded", "shapes-vivid"))
    total = weighted_sum(scores, reward.weights)
    assert np.allclose(total, 2.0 * graded + 0.25 * vivid, rtol=0, atol=1e-15)
    assert list(scores) == ["shapes-graded", "shapes-vivid"]
    assert np.array_equal(scores["shapes-graded"], graded)


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        *(
            (
                Scores(np.array([0.0, value])),
                rf"image 1 of the batch \('b'\) got {value}; scores must be finite",
            )
            for value in (np.nan, np.inf, -np.inf)
        ),
        *((Scores(np.zeros(shape)), "needs one value for each of 2 images, an array of ") for shape in (1, 3, (2, 1))),
        *(
            (Scores(np.zeros(2), {"detections": detail}), "detail 'detections'")
            for detail in (np.array([0.0, np.nan]), np.zeros(1))
        ),
    ],
)
def test_scores_of_another_form_are_refused(scores, said):
    with pytest.raises(DataError, match=f"^scorer shapes-exact: {said}"):
        check_scores("shapes-exact", scores, ["a", "b"])


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
def test_prompts_of_another_world_are_refused_by_name(name, metadata, reason):
    foreign = pictures("a photo of a dog", metadata)
    with pytest.raises(DataError) as caught:
        shapes_scorer(name).score(foreign)
    message = str(caught.value)
    assert message.startswith(f"scorers.{name}: prompt 'a photo of a dog': {reason}")
    assert "needs prompts of the shapes world (prompts.source: shapes)" in message


def test_vivid_judges_any_prompt():
    foreign = pictures("a photo of a dog", {})
    assert shapes_scorer("shapes-vivid").score(foreign).values.shape == (2,)


def test_only_refused_images_may_lack_a_score():
    values = np.array([np.nan, 0.5, np.nan])
    with pytest.raises(DataError, match=r"scorer odd: image 2 of the batch \('c'\) got nan"):
        check_scores("odd", Scores(values, {}, {0: "why"}), ["a", "b", "c"])
    details = {"d": np.array([np.nan, np.nan, 1.0])}
    with pytest.raises(DataError, match="detail 'd' needs one finite value"):
        check_scores("odd", Scores(np.array([np.nan, 0.5, 1.0]), details, {0: "why"}), ["a", "b", "c"])


def test_reward_raises_on_refused_image():
    reward = Reward({KEY: External(KEY, settings())}, {KEY: 1.0})
    with pytest.raises(DataError, match=r"^scorer odd: refuses an image of the prompt 'prompt x' \(the reason"):
        reward.scores(batch("refuse"))
