"""The wheel alone: the example of docs/library.md, without a clone, DVC or Prefect."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(900)]

WITHOUT = ("dvc", "flows", "hydra", "infra", "prefect", "stages")
"""Packages of the pipeline, and of the clone."""


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("chunk_grpo-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(installed), str(wheel)], check=True)
    empty.mkdir()
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "library.md").read_text(), re.DOTALL)
    start = (
        f"import sys; sys.modules.update(dict.fromkeys({WITHOUT}))\n"
        f"import chunk_grpo; assert chunk_grpo.__file__.startswith({str(installed)!r}), chunk_grpo.__file__\n"
    )
    code = start + "\n".join(blocks)
    (empty / "example.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "example.py"], cwd=empty, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[+-]0\.\d{3} \([+-]0\.\d{3} to [+-]0\.\d{3}\)\n", done.stdout)
    assert (empty / "policy" / "transformer" / "config.json").is_file()
