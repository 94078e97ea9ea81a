"""The scorer: detector, colours and rules together, on small random checkpoints."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Pictures, ScoreBatch, check_scores
from chunk_grpo.scorers.geneval.colours import crop_object
from chunk_grpo.scorers.geneval.detector import load_detector
from chunk_grpo.scorers.geneval.records import CLASS_NAMES, COLOURS, RELATIONS
from chunk_grpo.scorers.geneval.rules import relations
from chunk_grpo.scorers.geneval.scorer import GenEval
from tests.scorers.checkpoints_geneval import geneval_settings, load_classifier, make_geneval

CAT = {"tag": "single_object", "include": [{"class": "cat", "count": 1}], "prompt": "a photo of a cat"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_geneval(tmp_path_factory.mktemp("geneval"))


@pytest.fixture(scope="module")
def scorer(folder: Path) -> Iterator[GenEval]:
    scorer = GenEval("geneval", geneval_settings(folder), "cpu")
    yield scorer
    scorer.close()


def pictures(number: int) -> Pictures:
    rng = np.random.default_rng(7)
    return rng.integers(0, 256, (number, 6, 8, 3), dtype=np.uint8).repeat(8, axis=1).repeat(8, axis=2)


def batch(images: Pictures, records: list[dict[str, Any]]) -> ScoreBatch:
    return ScoreBatch(
        images, [f"prompt {n}" for n in range(len(records))], records, list(range(len(records)))
    )


class Seen:
    """Answers of the models about images, without the scorer."""

    def __init__(self, folder: Path, images: Pictures) -> None:
        self.images = images
        self.found = load_detector("key", folder / "detector", torch.float32, "cpu").detect(images, 0.0)
        self.classifier = load_classifier(folder)

    def scores(self, row: int, name: str) -> list[float]:
        found = self.found[row]
        return sorted(found.scores[found.labels == CLASS_NAMES.index(name)].tolist(), reverse=True)

    def best(self, row: int) -> str:
        return CLASS_NAMES[self.found[row].labels[self.found[row].scores.argmax()]]

    def most_confident(self, row: int, name: str) -> int:
        found = self.found[row]
        return int(np.where(found.labels == CLASS_NAMES.index(name), found.scores, -1).argmax())

    def colour(self, row: int, name: str) -> str:
        found, number = self.found[row], self.most_confident(row, name)
        crop = crop_object(self.images[row], found.masks[number], found.boxes[number])
        return self.classifier.classify([crop], [name])[0]


@pytest.fixture(scope="module")
def seen(folder: Path) -> Seen:
    return Seen(folder, pictures(10))


def test_objects_and_thresholds(scorer, seen):
    """Each record asks for what is there, or for one more; counting needs more confidence."""
    images, records, expected = [], [], []
    for row in range(len(seen.images)):
        name = seen.best(row)
        for tag, threshold in (("single_object", 0.3), ("counting", 0.9)):
            count = sum(score > threshold for score in seen.scores(row, name))
            for more in (0, 1):
                if count + more:
                    images.append(seen.images[row])
                    records.append({"tag": tag, "include": [{"class": name, "count": count + more}]})
                    expected.append(1.0 - more)
    scores = scorer.score(batch(np.stack(images), records))
    assert scores.values.tolist() == expected
    assert min(expected.count(0.0), expected.count(1.0)) >= 10
    assert scores.details["unmet"].tolist() == [1 - value for value in expected]
    assert scores.values.dtype == np.float64
    check_scores("geneval", scores, [""] * len(expected))


def test_objects_of_all_classes_are_counted(scorer, seen):
    scores = scorer.score(batch(seen.images, [CAT] * 10))
    expected = [int((found.scores > np.float32(0.3)).sum()) for found in seen.found]
    assert scores.details["objects"].tolist() == expected
    counting = CAT | {"tag": "counting"}
    strict = scorer.score(batch(seen.images, [counting] * 10)).details["objects"]
    assert strict.tolist() == [int((found.scores > np.float32(0.9)).sum()) for found in seen.found]
    assert 0 < strict.sum() < sum(expected)


def test_colours(scorer, seen):
    """Prompts about each image's most confident object; one of the ten is right."""
    rows = [row for row in range(10) for _ in COLOURS]
    records = [
        {"tag": "colors", "include": [{"class": seen.best(row), "count": 1, "color": colour}]}
        for row in range(10)
        for colour in COLOURS
    ]
    values = scorer.score(batch(seen.images[rows], records)).values.reshape(10, 10)
    assert [COLOURS[int(row.argmax())] for row in values] == [
        seen.colour(row, seen.best(row)) for row in range(10)
    ]
    assert values.sum(axis=1).tolist() == [1.0] * 10


def test_places(scorer, seen):
    """Prompts about each image's most confident object and its neighbouring classes."""
    rows, records, expected = [], [], []
    for row, found in enumerate(seen.found[:5]):
        sure = [CLASS_NAMES[found.labels[n]] for n in np.argsort(-found.scores) if found.scores[n] > 0.3]
        first, *others = list(dict.fromkeys(sure))[:6]
        for other in others:
            boxes = [found.boxes[seen.most_confident(row, name)] for name in (other, first)]
            for way in RELATIONS:
                include = [{"class": first, "count": 1}, {"class": other, "count": 1, "position": [way, 0]}]
                rows.append(row)
                records.append({"tag": "position", "include": include})
                expected.append(float(way in relations(*boxes, 0.1)))
    assert scorer.score(batch(seen.images[rows], records)).values.tolist() == expected
    assert sum(expected) >= 3


def test_verdicts_have_reasons(scorer, seen):
    missing = next(name for name in CLASS_NAMES if not any(score > 0.3 for score in seen.scores(0, name)))
    record = {"tag": "single_object", "include": [{"class": missing, "count": 1}]}
    verdict = scorer.judge_rows(batch(seen.images[:1], [record]))[0]
    assert [str(reason) for reason in verdict.reasons] == [f"{missing}: include 1, found 0"]


def test_settings_move_the_rules(folder, seen):
    name = seen.best(0)
    best = seen.scores(0, name)[0]
    record = {"tag": "single_object", "include": [{"class": name, "count": 1}]}

    def values(**changes: object) -> list[float]:
        scorer = GenEval("geneval", geneval_settings(folder, **changes), "cpu")
        try:
            records = [record, record | {"tag": "counting"}]
            return scorer.score(batch(seen.images[[0, 0]], records)).values.tolist()
        finally:
            scorer.close()

    above, below = min(best + 0.01, 1.0), best - 0.01
    assert values(threshold=above, counting_threshold=below) == [0.0, 1.0]
    assert values(threshold=below, counting_threshold=above) == [1.0, 0.0]
    several = {"class": name, "count": 2}
    record = {"tag": "single_object", "include": [several]}
    assert values(threshold=1e-6, counting_threshold=1e-6, max_objects=1) == [0.0, 0.0]


def test_rejects_invalid_prompt_records(scorer, seen):
    colour = {"tag": "colors", "include": [{"class": "cat", "count": 1, "color": "mauve"}]}
    with pytest.raises(
        DataError, match=r"scorers.geneval: prompt 'prompt 1': include.0..color: must be .* got 'mauve'"
    ):
        scorer.score(batch(seen.images[:2], [CAT, colour]))
    with pytest.raises(DataError, match="prompt 'prompt 0': tag: required, but missing; include: required"):
        scorer.score(batch(seen.images[:1], [{}]))


def test_check_refuses_another_detector(folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    shutil.copy(copy / "classifier" / "config.json", copy / "detector" / "config.json")
    with pytest.raises(DataError, match=r"scorers\.geneval\.detector: must be a model of type mask2former"):
        GenEval("geneval", geneval_settings(copy)).check()
