"""README's table of presets: each preset has a level of evidence, and that of its kind of model."""

import re

import pytest

from chunk_grpo.config import parse_params
from chunk_grpo.orchestration.presets import composed, preset_names
from tests.conftest import ROOT

ROWS = re.findall(
    r"^\| (`.+?) \| .+ \| ((?:plan|toy|size|curve|repeated)[^|]*) \|$", (ROOT / "README.md").read_text("utf-8"), re.M
)
"""Names of presets and the level of a row."""


def names_of(cell: str) -> set[str]:
    """Presets of a cell; a name that begins with a hyphen is the end of one that begins as the first does."""
    first, *others = re.findall(r"`([^`]+)`", cell)
    return {first, *(first + name if name.startswith("-") else name for name in others)}


def test_every_preset_has_a_level() -> None:
    known = {name for cell, _ in ROWS for name in names_of(cell)}
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))
    for name in set(preset_names(ROOT)) - known:  # README has "..." for these
        assert re.search(rf"\b{name}\b", pages), name


@pytest.mark.parametrize(("cell", "level"), ROWS)
def test_the_level_is_that_of_the_presets_model(cell: str, level: str) -> None:
    """Presets of a toy have the level `toy`; no preset of a real size ran, so that its level begins with `plan`."""
    for name in names_of(cell):
        is_toy = parse_params(composed(ROOT, name)).model.checkpoint.startswith("assets/")
        assert is_toy == (level == "toy"), name
        assert is_toy or level.startswith("plan"), name
