"""The scorer: how it joins detector, colours and rules, by scripted models; test_every_scorer.py has real ones."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Pictures, ScoreBatch
from chunk_grpo.scorers.geneval.records import CLASS_NAMES, COLOURS
from chunk_grpo.scorers.geneval.rules import Detections
from chunk_grpo.scorers.geneval.scorer import GenEval
from tests.scorers.checkpoints_geneval import geneval_settings, make_geneval

CAT = {"class": "cat", "count": 1}
FOUND = [("cat", 0.95, 0), ("cat", 0.5, 10), ("dog", 0.95, 20)]
"""Class, score and left edge of the objects in every image: squares of 10 pixels."""

RED, ORANGE, GREEN = (COLOURS.index(name) for name in ("red", "orange", "green"))


class Detector:
    """Sees `FOUND` in every image."""

    def detect(self, images: Pictures, min_score: float) -> list[Detections]:
        seen = [each for each in FOUND if each[1] > min_score]
        masks = np.zeros((len(seen), *images.shape[1:3]), dtype=bool)
        for mask, (_, _, left) in zip(masks, seen, strict=True):
            mask[:, left : left + 10] = True
        labels = np.array([CLASS_NAMES.index(name) for name, _, _ in seen])
        boxes = np.array([(left, 0, left + 10, 10) for _, _, left in seen], dtype=np.float32)
        return [Detections(labels, np.float32([score for _, score, _ in seen]), boxes, masks)] * len(images)


class Classifier:
    """Reads the number of a colour from an object's pixels, which must be all alike."""

    def classify(self, crops: Sequence[NDArray[np.uint8]], class_names: Sequence[str]) -> list[str]:
        assert len(crops) == len(class_names) and all(len(np.unique(crop)) == 1 for crop in crops)
        return [COLOURS[crop[0, 0, 0]] for crop in crops]


def painted(*colours: int) -> NDArray[np.uint8]:
    """An image whose objects have these colours."""
    return np.repeat(np.uint8(colours), 10)[None, :, None].repeat(10, axis=0).repeat(3, axis=2)


def scorer(folder: Path, **changes: Any) -> GenEval:
    made = GenEval("geneval", geneval_settings(folder, **changes), "cpu")
    made.__dict__["models"] = Detector(), Classifier()
    return made


def batch(images: Sequence[NDArray[np.uint8]], *records: dict[str, Any]) -> ScoreBatch:
    prompts = [f"prompt {number}" for number in range(len(records))]
    return ScoreBatch(np.stack(images), prompts, records, range(len(records)))


def placed(relation: str) -> list[dict[str, Any]]:
    return [CAT, {"class": "dog", "count": 1, "position": [relation, 0]}]


@pytest.mark.parametrize(
    ("tag", "include", "changes", "value", "objects"),
    [
        ("two_object", [CAT | {"count": 2}], {}, 1, 3),
        ("two_object", [CAT | {"count": 3}], {}, 0, 3),
        ("two_object", [CAT | {"count": 2}], {"threshold": 0.6}, 0, 2),
        ("two_object", [CAT | {"count": 2}], {"max_objects": 1}, 0, 2),
        ("counting", [CAT | {"count": 2}], {}, 0, 2),  # of these, the detector must be surer
        ("counting", [CAT | {"count": 2}], {"counting_threshold": 0.4}, 1, 3),
        ("counting", [CAT], {"counting_threshold": 0.96}, 0, 0),
        ("colors", [CAT | {"color": "red"}], {}, 1, 3),
        ("colors", [CAT | {"color": "orange"}], {}, 0, 3),  # the less sure one's
        ("position", placed("right of"), {}, 1, 3),
        ("position", placed("left of"), {}, 0, 3),
        ("position", placed("right of"), {"position_threshold": 1.0}, 0, 3),  # 20 pixels apart, 20 wide together
        ("single_object", [CAT], {"reward": "graded"}, 0, 3),  # 1 - |1 - 2| / 1
        ("two_object", [CAT | {"count": 4}], {"reward": "graded"}, 0.5, 3),
    ],
)
def test_records_and_settings_reach_the_rules(
    tag: str, include: list[dict[str, Any]], changes: dict[str, Any], value: float, objects: int, tmp_path: Path
) -> None:
    scores = scorer(tmp_path, **changes).score(batch([painted(RED, ORANGE, GREEN)], {"tag": tag, "include": include}))
    assert (scores.values.tolist(), scores.details["objects"].tolist()) == ([value], [objects])
    if changes.get("reward") != "graded":
        assert scores.details["unmet"].tolist() == [1 - value]


def test_each_image_has_colours_of_its_own(tmp_path: Path) -> None:
    red_cat = {"tag": "colors", "include": [CAT | {"color": "red"}]}
    green_dog = {"tag": "colors", "include": [{"class": "dog", "count": 1, "color": "green"}]}
    images = [painted(RED, RED, GREEN), painted(GREEN, RED, RED), painted(GREEN, RED, GREEN)]
    given = batch(images, red_cat, red_cat, green_dog)
    assert scorer(tmp_path).score(given).values.tolist() == [1, 0, 1]
    verdicts = scorer(tmp_path).judge_rows(given)
    assert [str(reason) for reason in verdicts[1].reasons] == ["cat: color 1 red, found 1 green"]


def test_rejects_invalid_prompt_records(tmp_path: Path) -> None:
    images = [painted(RED, RED, RED)] * 2
    good = {"tag": "single_object", "include": [CAT]}
    mauve = {"tag": "colors", "include": [CAT | {"color": "mauve"}]}
    with pytest.raises(
        DataError, match=r"scorers.geneval: prompt 'prompt 1': include.0..color: must be .* got 'mauve'"
    ):
        scorer(tmp_path).score(batch(images, good, mauve))
    with pytest.raises(DataError, match="prompt 'prompt 0': tag: required, but missing; include: required"):
        scorer(tmp_path).score(batch(images[:1], {}))


def test_check_refuses_another_detector(tmp_path: Path) -> None:
    folder = make_geneval(tmp_path)
    shutil.copy(folder / "classifier" / "config.json", folder / "detector" / "config.json")
    with pytest.raises(DataError, match=r"scorers\.geneval\.detector: must be a model of type mask2former"):
        GenEval("geneval", geneval_settings(folder)).check()
