"""Presets for one card fit it and a night."""

import pytest

from tests.planning.planned import plan, preset
from tests.planning.test_plan import GIB

NIGHTS = {
    "night-24gb": "RTX4090",
    "night-24gb-edit": "RTX4090",
    "night-24gb-flux": "RTX4090",
    "night-24gb-klein": "RTX4090",
    "night-24gb-z-image": "RTX4090",
    "night-48gb": "L40S",
}


@pytest.mark.parametrize("name", NIGHTS)
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
