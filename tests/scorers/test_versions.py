"""What every scorer's present version makes of fixed images with fixed small models.

Scores are cached under a scorer's version, not under its code. So code that scores differently must raise the version:
then this test fails until the new version's scores are written down here, and old scores are not mixed with new ones.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chunk_grpo.config import load_params
from chunk_grpo.image_files import as_pictures
from chunk_grpo.scorers.base import ScoreBatch, Scorer
from chunk_grpo.scorers.contract import check_contract
from chunk_grpo.scorers.running.registry import BUILT_IN, make_scorer
from chunk_grpo.shapes.prompts import all_prompts
from chunk_grpo.shapes.render import render
from chunk_grpo.shapes.scene import Scene, Thing
from tests.scorers.judge_server import JudgeServer
from tests.scorers.random_models import make_models
from tests.shapes_scorers import SHAPES_SCORERS, shapes_scorer
from tests.test_presets import compose

SCENES = [
    Scene("white", (Thing("circle", "red", 16, 16, 5),)),
    Scene("black", (Thing("square", "green", 8, 8, 5), Thing("square", "blue", 24, 24, 5))),
    Scene("white", (Thing("cross", "purple", 9, 24, 4), Thing("triangle", "yellow", 22, 7, 6))),
]
PICTURES = as_pictures(render(SCENES).numpy())
BY_TEXT = {spec.prompt: spec for spec in all_prompts()}
SPECS = [BY_TEXT[text] for text in ("a red circle", "two squares", "a yellow triangle")]

VERSIONS: dict[str, tuple[int, list[float]]] = {
    "shapes-exact": (1, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]),
    "shapes-graded": (
        1,
        [0.994138, 0.359935, 4.76884e-06, 3.58048e-07, 1.0, 1.09819e-07, 5.30616e-05, 0.333826, 0.892005],
    ),
    "shapes-vivid": (
        1,
        [0.210172, 0.210172, 0.210172, 0.428922, 0.428922, 0.428922, 0.295343, 0.295343, 0.295343],
    ),
    "clip": (1, [0.281104, 0.259677, -0.0277858]),
    "pickscore": (1, [28.1112, 25.9685, -2.77867]),
    "imagereward": (1, [5.55347, -0.496454, -4.25025]),
    "hpsv3": (1, [-0.0691885, -1.79009, 1.15027]),
    "geneval": (1, [1.0, 0.0, 0.0]),
    "wise": (1, [0.55, 1.0, 0.9]),
}
"""Kind to version and scores."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("versions")
    make_models(folder / "data" / "random-models")
    return folder


def test_every_built_in_scorer_is_pinned() -> None:
    assert set(VERSIONS) == set(BUILT_IN)


@pytest.fixture(params=BUILT_IN)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scorer(kind: str, models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scorer]:
    monkeypatch.chdir(models)
    with JudgeServer() as judge:
        if kind in SHAPES_SCORERS:
            scorer = shapes_scorer(kind)
        else:
            settings = load_params(compose("random-scorers", models)).scorers[kind]
            changes = {"base_url": judge.url} if kind == "wise" else {}
            scorer = make_scorer(kind, settings.model_copy(update=changes))
        yield scorer
        scorer.close()


def test_a_version_scores_what_it_always_scored(kind: str, scorer: Scorer) -> None:
    version, values = VERSIONS[kind]
    assert scorer.version == version
    assert scorer.score(batch(kind)).values == pytest.approx(values, rel=1e-4)


def test_every_built_in_scorer_keeps_the_contract(kind: str, scorer: Scorer) -> None:
    check_contract(scorer, batch(kind))


def batch(kind: str) -> ScoreBatch:
    noise = np.random.default_rng(0).integers(0, 256, PICTURES.shape, dtype=np.uint8)
    pictures = (PICTURES // 2 + noise // 2) if kind == "geneval" else PICTURES
    metadata = [spec.metadata() for spec in SPECS]
    if kind == "geneval":
        metadata = [
            {"tag": "single_object", "include": [{"class": c, "count": 1}]} for c in ("person", "car", "dog")
        ]
    if kind == "wise":
        metadata = [{"wise_id": number, "explanation": "what it shows"} for number in (1, 2, 3)]
    whole = ScoreBatch(pictures, [spec.prompt for spec in SPECS], metadata, [0, 1, 2])
    if kind not in SHAPES_SCORERS:
        return whole
    # Every picture with every caption, so that wrong ones are graded too.
    captions = whole.rows([0, 1, 2] * 3)
    return ScoreBatch(np.repeat(pictures, 3, axis=0), captions.prompts, captions.metadata, captions.groups)
