"""docs/library.ipynb: its cells run in order."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

CELLS = json.loads((ROOT / "docs" / "library.ipynb").read_text("utf-8"))["cells"]


def test_it_has_no_outputs() -> None:
    assert [cell for cell in CELLS if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.slow
def test_the_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in CELLS:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "library.ipynb", "exec"), names)
    assert {path.name for path in tmp_path.iterdir()} == {"base.png", "hybrid.png", "policy"}
    assert names["rise"].mean > 0
