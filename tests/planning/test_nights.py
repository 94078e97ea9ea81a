"""Presets for one card fit it and a night; docs/one_card.md and docs/deploy.md have the numbers of the plan."""

import re

import pytest

from infra.plan import only
from tests.planning.planned import ROOT, cells, plan, preset
from tests.planning.test_plan import GIB

NIGHTS = {
    "night-24gb": "RTX4090",
    "night-24gb-edit": "RTX4090",
    "night-24gb-flux": "RTX4090",
    "night-24gb-klein": "RTX4090",
    "night-24gb-z-image": "RTX4090",
    "night-48gb": "L40S",
}


ROWS = re.findall(
    r"^\| `([a-z0-9-]+)` \| [^|]+ \| (RTX4090|L40S|H100) \| (.+) \|$",
    (ROOT / "docs" / "one_card.md").read_text("utf-8"),
    re.MULTILINE,
)
"""Preset, card and numbers of a row of the page."""
QUICK = "night-24gb-klein"
"""The preset of the default tier: planning one takes 5 to 15 s."""


@pytest.mark.parametrize(
    "name", [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NIGHTS]
)
def test_a_night_on_a_card(name: str) -> None:
    gpu, params = NIGHTS[name], preset(name)
    found = plan(params, 1, gpu=gpu)
    assert found.fits
    assert min(card.left for card in found.cards if card.gpu == gpu) >= GIB
    assert found.total.hours[1] <= 10
    assert {finding.level for finding in found.findings} <= {"note"}
    drawn = params.train.iterations * params.train.prompts_per_iteration
    assert params.prompts.train_count == drawn
    assert params.model.text_precision is None  # it fits without


def test_the_page_on_one_card_has_every_preset_for_it() -> None:
    assert {path.stem for path in (ROOT / "conf" / "preset").glob("night-*.yaml")} == set(NIGHTS)
    assert {name for name, _, _ in ROWS} >= {*NIGHTS, "sd35-medium", "flux-dev-lora"}


@pytest.mark.parametrize(
    ("name", "gpu", "numbers"), [row if row[0] == QUICK else pytest.param(*row, marks=pytest.mark.slow) for row in ROWS]
)
def test_the_numbers_of_one_card_are_those_of_the_plan(name: str, gpu: str, numbers: str) -> None:
    found = cells(plan(only(preset(name), ["chunk-ws"]), gpu=gpu))
    keys = ("memory of a GPU, at most", "disk", "an iteration, at most", "hours")
    assert numbers == " | ".join(found[key] for key in keys)


def test_the_numbers_of_several_cards_are_those_of_the_plan() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    columns = [cells(plan(preset("flux-dev"), gpus, machines=machines)) for gpus, machines in ((8, 1), (32, 4))]
    assert "| preset | `flux-dev` | `flux-dev` |" in page
    for row in columns[0]:
        label = "the preset, 3 trainings" if row == "hours" else row
        assert f"| {label} | {' | '.join(column[row] for column in columns)} |" in page
