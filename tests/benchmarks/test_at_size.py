"""Trainings at a preset's size, with the toy in the preset's place."""

import json
from pathlib import Path

import pytest

from benchmarks import at_size
from tests.families.small_parts import TINY

TOY = [
    f"model.checkpoint={TINY}",
    "model.height=32",
    "model.width=32",
    "model.max_sequence_length=8",
    "train.group_size=2",
    "train.lora.rank=2",
]


@pytest.mark.slow  # a measurement for a GPU
def test_each_way_trains_and_stands_beside_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of the first way stands for the others' too: planning takes as long as all the trainings."""
    planned, plans, file = at_size.planned, [], tmp_path / "found.json"

    def planned_once(params, gpu):
        if not plans:
            plans.append(planned(params, gpu))
        return plans[0]

    monkeypatch.setattr(at_size, "planned", planned_once)
    ways = ["eager", "half recomputed", "wide adapter", "swapped"]
    at_size.main(["random-flux", *TOY, "--ways", *ways, "--iterations", "1", "--json", str(file)])
    found = json.loads(file.read_text())["ways"]
    assert list(found) == ways
    for record in found.values():
        assert record["images"] == 4
        assert len(record["seconds_an_image"]) == 1
        assert record["planned_gib"]["update"] > 0
        assert max(record["fidelity_p99"]) < 0.05
    # Recomputed activations and copied weights are the same numbers.
    for way in ("half recomputed", "swapped"):
        assert found[way]["grad_norm"] == found["eager"]["grad_norm"]
    assert found["wide adapter"]["grad_norm"] == pytest.approx(found["eager"]["grad_norm"], rel=0.05)
    assert found["wide adapter"]["grad_norm"] != found["eager"]["grad_norm"]
