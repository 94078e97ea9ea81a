"""The preset random-scorers by `dvc`: every scorer on small random models, through to the report."""

import json
from pathlib import Path

import pyarrow.compute as pc
import pytest

from chunk_grpo.artifacts import read_table
from tests.conftest import Workspace
from tests.real_checkout import dvc, make_checkout, python, ran
from tests.scorers.checkpoints_clip import make_clip
from tests.scorers.judge_server import JudgeServer
from tests.scorers.random_models import make_models

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

KINDS = (
    *("shapes-graded", "hpsv2", "hpsv3", "imagereward", "pickscore", "clip", "geneval", "ocr", "wise"),
    *("aesthetic", "vlm-judge", "questions"),
)
SPLIT = dict.fromkeys(KINDS, "eval") | {
    "geneval": "things",
    "ocr": "signs",
    "wise": "knowledge",
    "questions": "composition",
}
POLICIES = {"base": 1, "dance": 2, "chunk-ws": 2}
"""And how many modes each has."""

COMMITS = ("a" * 40, "b" * 40)
"""Commits of the repository test/pickscore in the hub's cache."""


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of what is committed or changed here, with the models where the preset looks for them."""
    folder = make_checkout(tmp_path_factory.mktemp("random-scorers") / "repository")
    make_models(folder / "data" / "random-models")
    for seed, commit in enumerate(COMMITS):
        make_clip(folder / "data" / "hub" / "models--test--pickscore" / "snapshots" / commit, seed=seed)
    return folder


def test_every_scorer_runs_and_changed_scorer_reruns_alone(pipeline: Path) -> None:
    cache = str(pipeline / "data" / "hub")
    with JudgeServer() as judge:
        assert python(pipeline, "-m", "chunk_grpo", "params", "compose", "random-scorers").returncode == 0
        settings = {
            "scorers.wise.base_url": judge.url,
            "scorers.vlm-judge.base_url": judge.url,
            "scorers.questions.base_url": judge.url,
            "scorers.pickscore.model.checkpoint": "test/pickscore",
            "scorers.pickscore.model.revision": COMMITS[0],
        }
        changes = [part for name, value in settings.items() for part in ("-S", f"{name}={value}")]
        first = ran(dvc(pipeline, "exp", "run", *changes, HF_HUB_CACHE=cache))
        assert {f"score_base@{kind}" for kind in KINDS} < first
        prompts = read_table(str(pipeline / "artifacts" / "prompts" / "evaluation.parquet"), "prompts").to_pylist()
        for policy, modes in POLICIES.items():
            for kind in KINDS:
                location = pipeline / "artifacts" / "scores" / policy / f"{kind}.parquet"
                rows = read_table(str(location), "scores").filter(pc.field("metric") == "score").to_pylist()
                scored = [row["prompt_id"] for row in rows]
                asked = [p["prompt_id"] for p in prompts if p["split"] == SPLIT[kind]]
                assert sorted(scored) == sorted(asked * modes)
        report = (pipeline / "artifacts" / "report" / "report.md").read_text()
        for columns in (
            ["reward shapes-graded", "hpsv3", "hpsv2", "imagereward"],
            ["pickscore", "clip", "aesthetic", "vlm-judge"],
        ):
            assert f"| policy | {' | '.join(columns)} |" in report
        assert "*geneval on the split things, mean score" in report
        assert "*wise on the split knowledge, mean score" in report
        assert "| wise | wise/legacy/tiny-judge | WiScore, 0 to 1 | 1 |" in report
        summary = json.loads((pipeline / "artifacts" / "report" / "summary.json").read_text())
        assert {"hpsv3", "imagereward", "pickscore", "clip"} < set(summary["base"])

        Workspace(pipeline).edit(lambda params: params["scorers"]["pickscore"]["model"].update(revision=COMMITS[1]))
        again = ran(dvc(pipeline, "repro", HF_HUB_CACHE=cache))
    of_pickscore = {"score_base@pickscore", "score@dance-pickscore", "score@chunk-ws-pickscore"}
    assert again == {"check_scorers", "try_scorers", *of_pickscore, "report"}
