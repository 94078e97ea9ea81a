"""A params.yaml that is too deep, or too long once its aliases are written out, is refused at once."""

import time
from pathlib import Path

import pytest

from chunk_grpo.config import load_params
from chunk_grpo.errors import ConfigError
from tests.params_edits import ROOT

DEEP = "must have at most 50 levels, got more; an alias must not be inside its own anchor"
LONG = "must have at most 100000 values with aliases expanded, got more; use fewer aliases"
BOMB = "\n".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}' if level else '1'] * 10)}]" for level in range(10))
"""Ten levels of ten aliases: ten billion values."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("model: &m [*m]\n", DEEP, id="a list that holds itself"),
        pytest.param("model: " + "[" * 3000 + "]" * 3000 + "\n", DEEP, id="3,000 levels"),
        pytest.param(BOMB, LONG, id="aliases of aliases"),
    ],
)
def test_oversized_yaml_is_refused_quickly(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    begin = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        load_params(path)
    assert str(caught.value) == f"{path}: {message}"
    assert time.monotonic() - begin < 30  # minutes without the bound


def test_aliases_may_still_be_used(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    text = (ROOT / "params.yaml").read_text()
    assert text.count("height: 32\n") == text.count("width: 32\n") == 2
    text = text.replace("height: 32\n", "height: &side 32\n", 1).replace("width: 32\n", "width: *side\n")
    path.write_text(text)
    assert load_params(path) == load_params(ROOT / "params.yaml")
