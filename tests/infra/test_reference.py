"""infra/reference.py and chunk_grpo/config/reference.py: the tables of docs/parameters.md, and what is in a row."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.config.reference import Row, params_schema, rows, values
from chunk_grpo.errors import ConfigError
from infra.reference import PAGE, SCHEMA, reference

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / PAGE, tmp_path / PAGE)
    return tmp_path


def test_keeps_prose_and_rewrites_tables(root: Path) -> None:
    page = (root / PAGE).read_text()
    edited = page.replace("# Parameters\n", "# Parameters\n\nBy hand.\n").replace("8 to 4096", "8 to 9000")
    (root / PAGE).write_text(edited)
    made = reference(root)
    assert made[PAGE] == page.replace("# Parameters\n", "# Parameters\n\nBy hand.\n")
    assert made[SCHEMA] == (ROOT / SCHEMA).read_text()


def test_column_tiny_has_values_of_the_preset(root: Path) -> None:
    preset = root / "conf" / "preset" / "tiny.yaml"
    preset.write_text(preset.read_text().replace("eta: 0.7 ", "eta: 0.6 "))
    (row,) = [line for line in reference(root)[PAGE].splitlines() if line.startswith("| `sampling.eta`")]
    assert "| `0.6` | `0.7` |" in row


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("<!-- table: prompts encode -->", "<!-- table: prompts -->", "got encode 0 times"),
        ("<!-- table: variants -->", "<!-- table: variants train -->", "got train 2 times"),
        ("<!-- table: variants -->", "<!-- table: variants tests -->", "got tests 1 times"),
    ],
)
def test_each_section_has_one_table(old: str, new: str, said: str, root: Path) -> None:
    page = (root / PAGE).read_text()
    assert old in page
    (root / PAGE).write_text(page.replace(old, new))
    with pytest.raises(ConfigError, match=said):
        reference(root)


def row(key: str) -> Row:
    found = {row.key: row for row in rows(params_schema(), key.partition(".")[0])}
    return found[key]


def test_a_row_has_the_annotation_and_the_docstring() -> None:
    assert row("train.max_grad_norm") == Row(
        key="train.max_grad_norm",
        type="number",
        range="> 0",
        meaning="Upper bound of the gradient norm; larger gradients are scaled down.",
        left_out="`1.0`",
        source="toy; Table 6: 0.01",
    )


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a.NAME", ["x", "y"]),
        ("a.NAME.b", [1]),  # once, though x and y have it
        ("a.NAME.c", [2]),
        ("rewards.SCORER", [{"x": 0.5}]),
        ("none.d", []),
        ("none", [None]),
    ],
)
def test_values_of_the_users_own_names(key: str, expected: list[Any]) -> None:
    params = {"a": {"x": {"b": 1}, "y": {"b": 1, "c": 2}}, "rewards": {"x": 0.5}, "none": None}
    assert values(params, tuple(key.split("."))) == expected
