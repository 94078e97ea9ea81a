"""Identity of a scorer, and a stage's reaction to another scorer."""

import json
from pathlib import Path

import pytest

from chunk_grpo.config.scorer_settings import Weights
from chunk_grpo.config.scorers import ClipScorer, ShapesScorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.running.fingerprint import scoring_settings, spec_hash
from chunk_grpo.scorers.running.placing import place_checked
from chunk_grpo.scorers.running.registry import make_scorer
from chunk_grpo.scorers.running.spec import require_same, spec_from, spec_of
from tests.scorers.odd_scorers import settings
from tests.shapes_scorers import shapes_scorer

COMMIT, OTHER_COMMIT = "a" * 40, "b" * 40
FILES = {"model": ("config.json", "*.safetensors|*.bin")}
SHAPES = ShapesScorer(kind="shapes-exact", splits=("eval", "wise"), batch_size=4)


def clip(checkpoint: str = "openai/clip", revision: str | None = COMMIT, **changes: object) -> ClipScorer:
    made = ClipScorer(
        kind="clip",
        splits=("eval",),
        batch_size=4,
        model=Weights(checkpoint=checkpoint, revision=revision),
        processor=None,
        dtype="float32",
        scale="cosine",
        resize="processor",
    )
    return made.model_copy(update=changes)


def identity(section: ClipScorer, version: int = 1) -> str:
    return spec_hash("likeness", version, section, FILES)


def model_in(folder: Path, weights: bytes = b"weights") -> ClipScorer:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return clip(str(folder), None)


@pytest.mark.parametrize(
    "other",
    [
        identity(clip(), version=2),
        identity(clip(revision=OTHER_COMMIT)),
        identity(clip("openai/clip-large")),
        identity(clip(dtype="bfloat16")),
        identity(clip(scale="logit")),
        identity(clip(processor=Weights(checkpoint="openai/clip", revision=COMMIT))),
    ],
    ids=["version", "revision", "checkpoint", "dtype", "scale", "processor"],
)
def test_identity_changes_with_every_scoring_setting(other):
    assert other != identity(clip())


def test_a_local_model_is_known_by_its_files_wherever_they_lie(tmp_path):
    first, moved = model_in(tmp_path / "a"), model_in(tmp_path / "b" / "c")
    assert identity(first) == identity(moved)
    assert scoring_settings(first) == scoring_settings(moved)
    assert identity(model_in(tmp_path / "d", b"weightS")) != identity(first)
    before = identity(first)
    (tmp_path / "a" / "merges.txt").write_text("a tokenizer's")
    with_merges = identity(first)
    (tmp_path / "a" / "merges.txt").rename(tmp_path / "a" / "vocab.txt")
    assert len({before, with_merges, identity(first)}) == 3


def test_unused_files_do_not_change_identity(tmp_path):
    """`hf download --local-dir` writes the time of the download below .cache."""
    section = model_in(tmp_path / "a")
    before = identity(section)
    for name in (".cache/huggingface/download/config.json", "README.md", "tf_model.h5", ".gitattributes"):
        path = tmp_path / "a" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1763750000.0")
    assert identity(section) == before


def test_a_model_of_the_hub_is_known_by_the_commit_of_its_revision(tmp_path, monkeypatch):
    """The layout of the hub's cache: refs/main names a folder of snapshots."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--openai--clip"
    for commit in (COMMIT, OTHER_COMMIT):
        model_in(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    hashes = []
    for commit in (COMMIT, OTHER_COMMIT, COMMIT):
        (repository / "refs" / "main").write_text(commit)
        hashes.append(identity(clip(revision=None)))
    assert hashes[0] == hashes[2] != hashes[1]


def test_new_version_changes_identity(monkeypatch):
    scorer = shapes_scorer("shapes-exact")
    spec, before = spec_of("it", SHAPES, scorer), scorer.spec_hash()
    require_same(spec, scorer)
    monkeypatch.setattr(type(scorer), "version", scorer.version + 1)
    assert scorer.spec_hash() != before
    with pytest.raises(DataError, match=r"scorers.it: is shapes-exact version 2, but was checked as .* version 1"):
        require_same(spec, scorer)


def test_only_the_checked_scorer_may_score():
    checked = settings("Compared", blind=True)
    spec = spec_of("own", checked, make_scorer("own", checked))
    assert place_checked(spec, {"own": checked.model_copy(update={"batch_size": 9})}, {}).name == "own"
    with pytest.raises(DataError, match=r"scorers.own: settings or model files differ from .* checked; run"):
        place_checked(spec, {"own": settings("Compared", blind=False)}, {})
    with pytest.raises(DataError, match=r"scorers.own: was checked, but is not in params.yaml; run `dvc repro`"):
        place_checked(spec, {}, {})


def test_a_spec_survives_json():
    spec = spec_of("it", SHAPES, shapes_scorer("shapes-exact"))
    assert spec_from(json.loads(spec.model_dump_json()), "it.json") == spec


def test_a_spec_of_another_kind_is_refused_with_its_file():
    record = spec_of("it", SHAPES, shapes_scorer("shapes-exact")).model_dump(mode="json")
    for wrong in ({name: value for name, value in record.items() if name != "splits"}, {**record, "settings": 7}):
        with pytest.raises(DataError, match=r"(?s)^it.json: .* cannot read the scorer spec .*Run `dvc repro check_sc"):
            spec_from(wrong, "it.json")
