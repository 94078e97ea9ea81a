"""docs/families.md has the plans of the families' presets."""

import re
from pathlib import Path

import pytest

from chunk_grpo.config.families import family_names
from chunk_grpo.planning.models import known_ids
from tests.planning.planned import plan, preset

PAGE = (Path(__file__).parents[2] / "docs" / "families.md").read_text("utf-8")
ROWS = re.findall(r"^\| `([\w-]+)` \| (\d+) \| (\d+) \| ([\d, /]+) \| ([\d,]+) \|$", PAGE, re.MULTILINE)


def row(name: str, gpus: int) -> tuple[str, str, str, str, str]:
    found = plan(preset(name), gpus)
    assert found.fits
    most = max(phase.bytes for phase in found.memory) / 2**30
    seconds = " / ".join(f"{cost.seconds.least:,.0f}" for cost in found.iterations)
    return name, str(gpus), f"{most:.0f}", seconds, f"{found.total.hours[0]:,.0f}"


@pytest.mark.slow
@pytest.mark.parametrize("said", ROWS)
def test_preset_plan_matches_docs(said):
    assert row(said[0], int(said[1])) == said


def test_the_page_names_every_family_and_plans_on_one_and_eight_gpus():
    assert all(f"| `{name}` |" in PAGE for name in family_names())
    assert {said[1] for said in ROWS} == {"1", "8"}
    assert len(ROWS) % 2 == 0


@pytest.mark.parametrize("name", ["black-forest-labs/FLUX.2-dev", "black-forest-labs/FLUX.2-klein-base-9B"])
def test_hub_ids_without_a_preset_are_known(name):
    assert name in known_ids()
