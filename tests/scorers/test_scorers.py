"""The weighted sum, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest

from chunk_grpo.errors import ConfigError, DataError
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
SCENES = [Scene("white", (Thing("circle", "red", 16, 16, 5),)), Scene("black", (Thing("square", "blue", 10, 20, 5),))]


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


def test_the_reward_has_the_values_of_each_weighted_scorer():
    batch = pictures(RED_CIRCLE.prompt, dict(RED_CIRCLE.metadata()))
    scores = shapes_reward({"shapes-graded": 2.0, "shapes-vivid": 0.25}).scores(batch)
    assert list(scores) == ["shapes-graded", "shapes-vivid"]
    for name, values in scores.items():
        assert np.array_equal(values, shapes_scorer(name).score(batch).values)


def test_mix_adds_in_the_order_of_the_weights_from_zero():
    """In binary, (0.1 + 0.2) + 0.3 is not 0.1 + (0.2 + 0.3): the order of the weights changes the last bit."""
    details = {"c": np.array([0.3]), "b": np.array([0.2]), "a": np.array([0.1]), "unused": np.array([9.0])}
    assert weighted_sum(details, {"a": 1.0, "b": 1.0, "c": 1.0}).tolist() == [0.6000000000000001]
    assert weighted_sum(details, {"c": 1.0, "b": 1.0, "a": 1.0}).tolist() == [0.6]
    mixed = weighted_sum({"a": np.array([0.25, 0.75]), "b": np.array([4.0, 8.0])}, {"b": 0.5, "a": 2.0})
    assert mixed.tolist() == [2.5, 5.5]
    assert details["a"].tolist() == [0.1]


def test_a_scorer_that_compares_a_group_is_no_training_reward():
    with pytest.raises(ConfigError, match=r"^rewards.odd: this scorer compares the images of a prompt"):
        Reward({KEY: External(KEY, settings("Compared"))}, {KEY: 1.0})


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (Scores(np.array([0.0, np.nan])), r"image 1 of the batch \('b'\) got nan; scores must be finite"),
        (Scores(np.array([0.0, -np.inf])), r"image 1 of the batch \('b'\) got -inf; scores must be finite"),
        (Scores(np.zeros(3)), r"needs one value for each of 2 images, an array of \[2\], got an array of \[3\]"),
        (Scores(np.zeros((2, 1))), "needs one value for each of 2 images, an array of "),
        (Scores(np.zeros(2), {"detections": np.array([0.0, np.nan])}), "detail 'detections'"),
        (Scores(np.zeros(2), {"detections": np.zeros(1)}), "detail 'detections'"),
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


def test_the_reward_needs_a_number_for_every_image():
    reward = Reward({KEY: External(KEY, settings())}, {KEY: 1.0})
    with pytest.raises(DataError, match=r"^scorer odd: refuses an image of the prompt 'prompt x' \(the reason"):
        reward.scores(batch("refuse"))
    wrong = SimpleNamespace(groupwise=False, score=lambda batch: Scores(np.array([0.25, np.nan])))
    with pytest.raises(DataError, match=r"scorer wrong: image 1 of the batch \(.*\) got nan"):
        Reward({"wrong": wrong}, {"wrong": 1.0}).scores(batch(count=2))
