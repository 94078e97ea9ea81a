"""Scorers are found and identified before any long work; what depends on a scorer runs again when it changes."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from chunk_grpo.artifacts import read_table
from tests.conftest import SCORER, VARIANT, Workspace
from tests.params_edits import put

OWN = """
def brightness(images, prompts, metadata):
    return images.mean(axis=(1, 2, 3)) / 255
"""


def specs(workspace: Workspace) -> dict[str, Any]:
    """Every file that the stage writes, parsed."""
    folder = workspace.artifacts / "specs"
    return {
        path.relative_to(folder).as_posix(): json.loads(path.read_text())
        for path in sorted(folder.rglob("*.json"))
        if path.name != "tried.json"  # of the next stage
    }


def external(source: str, version: int = 1) -> dict[str, Any]:
    settings = {"kind": "external", "splits": ["eval"], "batch_size": 4, "source": source}
    return {**settings, "version": version, "options": {}}


def test_each_scorer_has_a_spec_and_training_has_those_that_it_uses(finished: Workspace) -> None:
    found = specs(finished)
    kinds = ("shapes-exact", "shapes-graded", "shapes-vivid")
    assert sorted(found) == sorted([*(f"scorers/{kind}.json" for kind in kinds), "training.json"])
    assert list(found["training.json"]) == ["shapes-exact", "shapes-graded", "shapes-vivid"]
    exact = found["scorers/shapes-exact.json"]
    assert (exact["name"], exact["version"]) == ("shapes-exact", 1)
    assert exact["splits"] == ["eval", "wise"]
    assert exact["settings"] == {"kind": "shapes-exact"}
    assert found["training.json"]["shapes-exact"] == {**exact, "splits": ["train"]}


def test_a_change_of_what_training_does_not_use_leaves_the_other_specs_as_they_are(workspace: Workspace) -> None:
    """The splits of a scorer, and another scorer with its version."""
    (workspace.root / "own_rewards.py").write_text(OWN)
    own = external("own_rewards:brightness")
    found = [specs(workspace)]
    edits = (("scorers.shapes-exact.splits", ["eval"]), ("scorers.own", own), ("scorers.own.version", 2))
    for path, value in edits:
        workspace.edit(put(path, value))
        assert workspace.run("check_scorers") == 0
        found.append(specs(workspace))
    changes = [{n for n in after if after[n] != before.get(n)} for before, after in pairwise(found)]
    assert changes == [{"scorers/shapes-exact.json"}, {"scorers/own.json"}, {"scorers/own.json"}]
    assert found[2]["scorers/own.json"]["spec_hash"] != found[3]["scorers/own.json"]["spec_hash"]


def test_the_scores_of_a_users_own_scorer_are_of_its_splits_and_carry_its_spec(workspace: Workspace) -> None:
    (workspace.root / "own_rewards.py").write_text(OWN)
    workspace.edit(lambda raw: raw["scorers"].update(own=external("own_rewards:brightness")))
    assert workspace.run("check_scorers") == 0
    out = "artifacts/scores/base/own.parquet"
    assert workspace.run("score_base", spec="artifacts/specs/scorers/own.json", out=out) == 0
    prompts = read_table(str(workspace.artifacts / "prompts" / "evaluation.parquet"), "prompts").to_pylist()
    scored = read_table(str(workspace.root / out), "scores").to_pylist()
    assert {row["prompt_id"] for row in scored} == {r["prompt_id"] for r in prompts if r["split"] == "eval"}
    assert {row["scorer"] for row in scored} == {"own"}
    kept = pq.read_schema(workspace.root / out).metadata[b"chunk_grpo.scorer"]
    assert json.loads(kept) == specs(workspace)["scorers/own.json"]


def test_missing_scorer_source_is_reported_before_any_output(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace.edit(lambda raw: raw["scorers"].update(own=external("no_such_rewards:brightness")))
    assert workspace.run("inputs") == 0
    before = workspace.files()
    assert workspace.run("check_scorers") == 2
    assert "scorers.own.source: cannot import no_such_rewards:brightness" in " ".join(capsys.readouterr().err.split())
    assert workspace.files() == before


@pytest.mark.parametrize("stage", ["train", "score"])
def test_a_spec_of_another_version_is_refused(
    stage: str, workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """State after an update of the package, when only some stages ran again."""
    for name in ("training.json", f"scorers/{SCORER}.json"):
        path = workspace.artifacts / "specs" / name
        path.write_text(path.read_text().replace('"version": 1', '"version": 7'))
    assert workspace.run(stage) == 3
    first = {"train": "shapes-exact", "score": SCORER}[stage]
    said = " ".join(capsys.readouterr().err.split())
    assert f"scorers.{first}: is {first} version 1, but was checked as {first} version 7; run `dvc" in said


def test_a_split_without_images_is_named(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(workspace.artifacts, "specs", "scorers", f"{SCORER}.json")
    path.write_text(path.read_text().replace('"eval",', '"test",').replace('"wise"', '"more"'))
    assert workspace.run("score") == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "must hold images of prompts of the splits test, more (scorers.shapes-graded.splits), got" in said
    assert VARIANT in said
