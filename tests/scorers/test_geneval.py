"""The scorer: detector, colours and rules together, on small random checkpoints."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chunk_grpo.config.scorers import ClipScorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Pictures, ScoreBatch, check_scores
from chunk_grpo.scorers.clip import ClipScore
from chunk_grpo.scorers.geneval.colours import crop_object
from chunk_grpo.scorers.geneval.detector import load_detector
from chunk_grpo.scorers.geneval.records import CLASS_NAMES, COLOURS, RELATIONS
from chunk_grpo.scorers.geneval.rules import relations
from chunk_grpo.scorers.geneval.scorer import GenEval
from chunk_grpo.scorers.running.configured import MODELS
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
    """What the models say of pictures, asked without the scorer."""

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


def test_objects_and_thresholds(scorer: GenEval, seen: Seen) -> None:
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


def test_objects_of_all_classes_are_counted(scorer: GenEval, seen: Seen) -> None:
    scores = scorer.score(batch(seen.images, [CAT] * 10))
    expected = [int((found.scores > np.float32(0.3)).sum()) for found in seen.found]
    assert scores.details["objects"].tolist() == expected
    counting = CAT | {"tag": "counting"}
    strict = scorer.score(batch(seen.images, [counting] * 10)).details["objects"]
    assert strict.tolist() == [int((found.scores > np.float32(0.9)).sum()) for found in seen.found]
    assert 0 < strict.sum() < sum(expected)


def test_colours(scorer: GenEval, seen: Seen) -> None:
    """Of each picture's most confident object: one of the ten is right."""
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


def test_places(scorer: GenEval, seen: Seen) -> None:
    """Of each picture's most confident object, and that of the next few classes seen from it."""
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


def test_scores_do_not_depend_on_the_batch(folder: Path, scorer: GenEval, seen: Seen) -> None:
    name = seen.best(0)
    record = {"tag": "colors", "include": [{"class": name, "count": 1, "color": seen.colour(0, name)}]}
    whole = batch(seen.images, [record, CAT] * 5)
    together = scorer.score(whole)
    reverse = scorer.score(whole.rows(range(9, -1, -1)))
    assert together.values[::-1].tolist() == reverse.values.tolist()
    assert together.details["objects"][::-1].tolist() == reverse.details["objects"].tolist()
    for row in range(10):
        assert scorer.score(whole.rows([row])).values[0] == together.values[row]
    assert together.values.sum() > 0


def test_verdicts_have_reasons(scorer: GenEval, seen: Seen) -> None:
    missing = next(name for name in CLASS_NAMES if not any(score > 0.3 for score in seen.scores(0, name)))
    record = {"tag": "single_object", "include": [{"class": missing, "count": 1}]}
    verdict = scorer.judge_rows(batch(seen.images[:1], [record]))[0]
    assert [str(reason) for reason in verdict.reasons] == [f"{missing}: include 1, found 0"]


def test_settings_move_the_rules(folder: Path, seen: Seen) -> None:
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


def test_identity(folder: Path, scorer: GenEval) -> None:
    assert scorer.name == "geneval-hf/detector"  # a folder's name, not where it lies
    assert scorer.needs == {"prompt", "metadata"}
    assert not scorer.groupwise
    others = [geneval_settings(folder, threshold=0.4), geneval_settings(folder, max_objects=8)]
    assert len({GenEval("geneval", settings).spec_hash() for settings in [scorer.settings, *others]}) == 3


def test_checkpoints_are_deterministic(folder: Path, tmp_path: Path) -> None:
    again = make_geneval(tmp_path / "again")
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert (again / path.relative_to(folder)).read_bytes() == path.read_bytes(), path
    other = make_geneval(tmp_path / "other", seed=1) / "detector" / "model.safetensors"
    assert other.read_bytes() != (folder / "detector" / "model.safetensors").read_bytes()


def test_models_are_shared_and_given_back(folder: Path, seen: Seen) -> None:
    settings = geneval_settings(folder, dtype="bfloat16")  # no other test's
    first, second = GenEval("first", settings, "cpu"), GenEval("second", settings, "cpu")

    def users() -> list[int]:
        return [number for key, number in MODELS.users().items() if "bfloat16" in str(key)]

    assert users() == []
    one = batch(seen.images[:1], [CAT])
    first.score(one)
    second.score(one)
    assert users() == [2, 2]
    first.close()
    assert users() == [1, 1]
    assert second.score(one).values.shape == (1,)
    second.close()
    assert users() == []


def test_a_clip_score_by_the_classifiers_model_shares_it(folder: Path, seen: Seen) -> None:
    geneval = GenEval("geneval", geneval_settings(folder), "cpu")
    settings = ClipScorer(
        kind="clip",
        splits=("eval",),
        batch_size=4,
        model=geneval.settings.classifier,
        processor=None,
        resize="processor",
        dtype="float32",
        scale="cosine",
    )
    clip = ClipScore("clip", settings, "cpu")
    assert geneval._load()[1].encoder is clip._load()[0]
    clip.close()
    assert geneval.score(batch(seen.images[:1], [CAT])).values.shape == (1,)
    geneval.close()


def test_records_of_other_prompts(scorer: GenEval, seen: Seen) -> None:
    colour = {"tag": "colors", "include": [{"class": "cat", "count": 1, "color": "mauve"}]}
    with pytest.raises(
        DataError, match=r"scorers.geneval: prompt 'prompt 1': include.0..color: must be .* got 'mauve'"
    ):
        scorer.score(batch(seen.images[:2], [CAT, colour]))
    with pytest.raises(DataError, match="prompt 'prompt 0': tag: required, but missing; include: required"):
        scorer.score(batch(seen.images[:1], [{}]))


@pytest.mark.parametrize(
    ("part", "file"),
    [
        ("detector", "config.json"),
        ("detector", "preprocessor_config.json"),
        ("detector", "model.safetensors"),
        ("classifier", "config.json"),
        ("classifier", "tokenizer.json"),
        ("classifier", "model.safetensors"),
    ],
)
def test_check_names_a_missing_file(folder: Path, tmp_path: Path, part: str, file: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    scorer = GenEval("geneval", geneval_settings(copy))
    scorer.check()
    (copy / part / file).unlink()
    with pytest.raises(DataError, match=rf"scorers.geneval.{part}: no file {file}"):
        scorer.check()


def test_check_refuses_another_detector(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    shutil.copy(copy / "classifier" / "config.json", copy / "detector" / "config.json")
    with pytest.raises(DataError, match=r"scorers\.geneval\.detector: must be a model of type mask2former"):
        GenEval("geneval", geneval_settings(copy)).check()
