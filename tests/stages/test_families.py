"""Each family runs through all stages; those that only edit in tests/stages/test_editing.py."""

import json
import shutil
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


def test_stages_write_the_same_bytes_again_and_for_a_family_from_elsewhere(workspace: Workspace) -> None:
    """From nothing; the family runs the network of FLUX.1, by other names of the texts' tensors."""
    before = workspace.files()
    shutil.rmtree(workspace.artifacts)
    workspace.edit(lambda raw: raw["model"].update(family=NAME))
    for stage in ORDER:
        assert workspace.run(stage) == 0, stage
    after = workspace.files()
    assert after.keys() == before.keys()
    clocks, of_texts = ("runs/", "timings/"), {name for name in after if name.startswith("embeddings/")}
    changed = {name for name in after if after[name] != before[name] and not name.startswith(clocks)}
    assert changed - of_texts == {"inputs/params.json", "inputs/model.json"}
    record = json.loads((workspace.artifacts / "inputs" / "model.json").read_text())
    assert set(record) == {"files", "commit", "family"}


@pytest.mark.slow  # test_editing.py has guided families on their own grid in the default tier
@pytest.mark.parametrize("name", [name for name in family_names() if not family_class(name).only_edits])
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
