"""What identifies a scorer, batches that are halved when memory is short, and models that scorers share."""

import json
from pathlib import Path

import numpy as np
import pytest

from chunk_grpo.config.scorers import ClipScorer, ShapesScorer, Weights
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.configured import SharedModels, in_batches, spec_hash
from chunk_grpo.scorers.spec import require_same, spec_from, spec_of
from tests.shapes_scorers import SHAPES_SCORERS, shapes_scorer


def clip(checkpoint: str = "openai/clip", revision: str | None = "abc", **changes: object) -> ClipScorer:
    settings = ClipScorer(
        kind="clip",
        splits=("eval",),
        batch_size=4,
        model=Weights(checkpoint=checkpoint, revision=revision),
        processor=None,
        dtype="float32",
        scale="cosine",
        resize="processor",
    )
    return settings.model_copy(update=changes)


@pytest.mark.parametrize(
    "other",
    [
        spec_hash(2, clip()),
        spec_hash(1, clip(revision="abd")),
        spec_hash(1, clip("openai/clip-large")),
        spec_hash(1, clip(dtype="bfloat16")),
        spec_hash(1, clip(scale="logit")),
        spec_hash(1, clip(processor=Weights(checkpoint="openai/clip", revision="abc"))),
    ],
    ids=["version", "revision", "checkpoint", "dtype", "scale", "processor"],
)
def test_whatever_could_move_a_score_is_another_identity(other: str) -> None:
    assert other != spec_hash(1, clip())


def test_which_images_and_how_many_at_a_time_are_no_identity() -> None:
    assert spec_hash(1, clip(splits=("wise",), batch_size=9)) == spec_hash(1, clip())


def test_a_local_model_is_known_by_its_files_wherever_they_lie(tmp_path: Path) -> None:
    hashes = []
    for name, content in (("a", b"weights"), ("b", b"weights"), ("c", b"other")):
        (tmp_path / name / "part").mkdir(parents=True)
        (tmp_path / name / "part" / "model.safetensors").write_bytes(content)
        hashes.append(spec_hash(1, clip(str(tmp_path / name), None)))
    assert hashes[0] == hashes[1] != hashes[2]
    (tmp_path / "b" / "part" / "model.safetensors").rename(tmp_path / "b" / "model.safetensors")
    assert spec_hash(1, clip(str(tmp_path / "b"), None)) != hashes[0]


def test_every_scorer_has_the_name_it_is_known_by_and_its_own_hash() -> None:
    assert [shapes_scorer(kind).name for kind in SHAPES_SCORERS] == list(SHAPES_SCORERS)
    assert len({shapes_scorer(kind).spec_hash() for kind in SHAPES_SCORERS}) == len(SHAPES_SCORERS)


def test_a_new_version_is_another_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = shapes_scorer("shapes-exact")
    spec, before = spec_of("it", SHAPES, scorer), scorer.spec_hash()
    require_same(spec, scorer)
    monkeypatch.setattr(type(scorer), "version", scorer.version + 1)
    assert scorer.spec_hash() != before
    with pytest.raises(
        DataError, match=r"scorers.it: is shapes-exact version 2, but was checked as .* version 1"
    ):
        require_same(spec, scorer)


SHAPES = ShapesScorer(kind="shapes-exact", splits=("eval", "wise"), batch_size=4)


def test_a_spec_survives_json() -> None:
    spec = spec_of("it", SHAPES, shapes_scorer("shapes-exact"))
    assert spec_from(json.loads(json.dumps(spec.to_json())), "it.json") == spec


@pytest.mark.parametrize("missing", ["key", "name", "version", "spec_hash", "settings"])
def test_a_spec_of_another_kind_is_refused_with_its_file(missing: str) -> None:
    record = spec_of("it", SHAPES, shapes_scorer("shapes-exact")).to_json()
    with pytest.raises(DataError, match=r"^it.json: no spec .*Run `dvc repro check_scorers`.$"):
        spec_from({name: value for name, value in record.items() if name != missing}, "it.json")
    with pytest.raises(DataError, match=r"^it.json: no spec "):
        spec_from({**record, "settings": {**record["settings"], "batch_size": 0}}, "it.json")


def images(count: int) -> ScoreBatch:
    pictures = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)
    return ScoreBatch(
        pictures, [f"p{i}" for i in range(count)], [{"i": i} for i in range(count)], range(count)
    )


def test_batches_of_the_asked_size_in_order() -> None:
    sizes: list[int] = []

    def score(part: ScoreBatch) -> Scores:
        sizes.append(len(part))
        assert [record["i"] for record in part.metadata] == part.images[:, 0, 0, 0].tolist() == part.groups
        return Scores(part.images[:, 0, 0, 0].astype(float), {"twice": 2.0 * part.images[:, 0, 0, 0]})

    scores = in_batches(images(7), 3, score)
    assert sizes == [3, 3, 1]
    assert scores.values.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert scores.details["twice"].tolist() == [0, 2, 4, 6, 8, 10, 12]


def test_batches_are_halved_until_they_fit_into_memory() -> None:
    """With room for three images: eight do not fit, nor do four; two do, and it stays with two."""
    asked: list[int] = []

    def score(part: ScoreBatch) -> Scores:
        asked.append(len(part))
        if len(part) > 3:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return Scores(part.images[:, 0, 0, 0].astype(float))

    assert in_batches(images(9), 8, score).values.tolist() == list(range(9))
    assert asked == [8, 4, 2, 2, 2, 2, 1]


def test_one_image_that_does_not_fit_and_other_errors_are_raised() -> None:
    def score(part: ScoreBatch) -> Scores:
        raise RuntimeError("CUDA out of memory." if len(part) == 1 else "shapes do not match")

    with pytest.raises(RuntimeError, match="out of memory"):
        in_batches(images(2), 1, score)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        in_batches(images(2), 2, score)


def test_a_model_is_loaded_once_and_dropped_by_the_last_user() -> None:
    models, loaded = SharedModels(), []

    def load() -> object:
        loaded.append(object())
        return loaded[-1]

    first, second, other = models.take("a", load), models.take("a", load), models.take("b", load)
    assert first is second is not other
    assert models.users() == {"a": 2, "b": 1}
    models.give_back("a")
    assert models.take("a", load) is first
    models.give_back("a")
    models.give_back("a")
    assert models.users() == {"b": 1}
    assert models.take("a", load) is not first
    assert len(loaded) == 3
