"""The drill that fills a disk during a stage, on the small pipeline."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flows.faults import REPOSITORY, training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a disk of its own")
@pytest.mark.parametrize("disk", ["clones", "cache", "home"])
def test_a_full_disk_is_told_loses_nothing_and_the_next_run_completes(
    disk: str, tmp_path: Path, make_pipeline: Callable[[Path], Path]
) -> None:
    root = make_pipeline(tmp_path / "checkout")
    command = [sys.executable, "-m", "tests.drills.disk", "--disk", disk, "--root", str(root)]
    command += ["--megabytes", "64", "--overrides", json.dumps(training(15.0))]
    command += ["--stage", "train@a", "--command", "train models/a.txt"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    print(result.stdout)  # noqa: T201
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Kept from before: prepare" in result.stdout
    assert "The next run: 4 stages: " in result.stdout
