"""Families other than FLUX.1 run through all stages."""

import json
from pathlib import Path
from typing import Any

import pytest
from diffusers import SD3Transformer2DModel

from chunk_grpo.artifacts import read_table
from chunk_grpo.errors import ConfigError
from chunk_grpo.families.registry import family_class
from tests.conftest import ORDER, VARIANT, Workspace
from tests.families.checkpoint_sd3 import random_pipeline

NAME = "tests.families.dummy"


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


def test_sd3_is_encoded_profiled_trained_and_drawn_with_guidance(
    workspace: Workspace, tmp_path: Path
) -> None:
    """By the pipeline's own grid. Its weights are random, so the images mean nothing."""
    random_pipeline().save_pretrained(tmp_path / "sd3")

    def change(raw: dict[str, Any]) -> None:
        raw["model"].update(family="sd3", checkpoint=str(tmp_path / "sd3"))
        raw["sampling"].update(shift=None, cfg_scale=2.0)
        raw["generate"].update(shift=None, cfg_scale=4.5)

    workspace.edit(change)
    for stage in ORDER:
        assert workspace.run(stage) == 0, stage
    profile = read_table(str(workspace.artifacts / "profile" / "l1_profile.parquet"), "l1_profile")
    assert min(profile["t"].to_pylist()) == pytest.approx(0.0089, abs=1e-4)
    policy = workspace.artifacts / "train" / VARIANT / "seed-0" / "transformer"
    assert SD3Transformer2DModel.from_pretrained(policy).config.qk_norm == "rms_norm"


def test_a_module_without_a_family_is_named() -> None:
    for module in ("tests.families.nothing", "tests.conftest"):
        with pytest.raises(
            ConfigError, match=rf"^model\.family: {module} must be a module with a class FAMILY"
        ):
            family_class(module)
