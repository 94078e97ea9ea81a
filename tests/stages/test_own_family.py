"""A family that no module of the package knows runs through all stages."""

import json

import pytest

from chunk_grpo.errors import ConfigError
from chunk_grpo.families.registry import family_class
from tests.conftest import ORDER, VARIANT, Workspace

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
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    record = json.loads((workspace.artifacts / "inputs" / "model.json").read_text())
    assert set(record) == {"files", "commit", "family"}


def test_a_module_without_a_family_is_named() -> None:
    for module in ("tests.families.nothing", "tests.conftest"):
        with pytest.raises(
            ConfigError, match=rf"^model\.family: {module} must be a module with a class FAMILY"
        ):
            family_class(module)
