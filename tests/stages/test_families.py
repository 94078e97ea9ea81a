"""Each family runs through all stages; those that only edit in tests/stages/test_editing.py."""

import json
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.artifacts import read_table
from chunk_grpo.config.families import family_names
from chunk_grpo.errors import ConfigError
from chunk_grpo.families.registry import family_class
from tests.conftest import ORDER, VARIANT, Workspace
from tests.families.parity import load, module_of

NAME = "tests.families.dummy"

USUAL = "qwen_image"
"""The others are slow tests; CI runs the smoke presets of FLUX.1 and SD3.5 too."""


def test_a_family_from_elsewhere_is_encoded_profiled_trained_and_drawn(workspace: Workspace) -> None:
    """Its weights and images are those of FLUX.1, whose network it runs."""
    before = workspace.files()
    workspace.edit(lambda raw: raw["model"].update(family=NAME))
    for stage in ORDER:
        assert workspace.run(stage) == 0, stage
    after = workspace.files()
    same = [name for name in after if name.startswith((f"train/{VARIANT}/", "images/"))]
    assert any(name.endswith(".safetensors") for name in same)
    assert [name for name in same if after[name] != before[name]] == []
    record = json.loads((workspace.artifacts / "inputs" / "model.json").read_text())
    assert set(record) == {"files", "commit", "family"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == USUAL else pytest.mark.slow)
        for name in family_names()
        if not family_class(name).only_edits
    ],
)
def test_a_family_is_encoded_profiled_trained_and_drawn(name: str, workspace: Workspace, tmp_path: Path) -> None:
    """By the pipeline's own grid, guided where it is. The weights are random, so the images mean nothing."""
    case = module_of(name).CASE
    module_of(name).random_pipeline().save_pretrained(tmp_path / "checkpoint")

    def change(raw: dict[str, Any]) -> None:
        raw["model"].update(family=name, checkpoint=str(tmp_path / "checkpoint"), max_sequence_length=case.tokens)
        raw["sampling"].update(shift=None, cfg_scale=case.scales[-1])
        raw["generate"].update(shift=None, cfg_scale=case.scales[-1])

    workspace.edit(change)
    for stage in ORDER:
        assert workspace.run(stage) == 0, stage
    profile = read_table(str(workspace.artifacts / "profile" / "l1_profile.parquet"), "l1_profile")
    family = load(name, tmp_path / "checkpoint")
    times = family.pipeline_times(17)[:-1].tolist()
    assert sorted(set(profile["t"].to_pylist()), reverse=True) == pytest.approx(times)
    policy = workspace.artifacts / "train" / VARIANT / "seed-0" / "transformer"
    assert family.network_class.from_pretrained(policy).config.keys() == family.transformer.config.keys()


def test_a_module_without_a_family_is_named() -> None:
    for module in ("tests.families.nothing", "tests.conftest"):
        with pytest.raises(ConfigError, match=rf"^model\.family: {module} must be a module with a class"):
            family_class(module)
