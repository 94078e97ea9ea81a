"""Which manifests of a folder belong to a run."""

from pathlib import Path

import pytest

from chunk_grpo.artifacts import write_json
from chunk_grpo.config import load_params
from chunk_grpo.reporting.inputs import _manifests, settings_from
from tests.conftest import ROOT
from tests.reporting.conftest import manifest

OWN = (
    *("inputs", "encode_prompts@profile", "encode_training@1", "train@chunk-ws-1", "score_base@shapes-exact"),
    *("score@chunk-ws-shapes-exact", "another@chunk-ws"),
)
REMOVED = ("train@chunk-ws-9", "train@removed-1", "encode_training@9", "score@chunk-ws-removed", "another@removed")


@pytest.mark.parametrize("stage", [*OWN, *REMOVED, "report"])
def test_manifests_of_removed_variants_seeds_and_scorers_are_left_out(stage: str, tmp_path: Path) -> None:
    write_json(manifest(stage, 0, 1.0), str(tmp_path / "any.json"))
    settings = settings_from(load_params(ROOT / "params.yaml"))
    assert [run.stage for run in _manifests(str(tmp_path), settings)] == ([stage] if stage in OWN else [])
