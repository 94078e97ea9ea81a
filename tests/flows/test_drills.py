"""Short runs of the drills: no process is left, and no byte changes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flows.faults import REPOSITORY, training


def drilled(name: str, *options: str) -> str:
    """What a drill says that ends well."""
    command = [sys.executable, "-m", f"tests.drills.{name}", *options]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    print(result.stdout)  # noqa: T201
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("training --kill stage", "The same bytes in "),
        ("training --kill engine", "The same bytes in "),
        ("training --kill stalled", "The same bytes in "),
        ("stops --seed 7 --count 2", "The same bytes after 4 hits; "),
    ],
)
def test_a_drill_finds_no_difference(command: str, said: str) -> None:
    """A training that is killed behind its first checkpoint, or at random moments."""
    assert said in drilled(*command.split())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a disk of its own")
@pytest.mark.parametrize("disk", ["clones", "cache", "home"])
def test_full_disk_is_reported_and_next_run_completes(
    disk: str, tmp_path: Path, make_pipeline: Callable[[Path], Path]
) -> None:
    """On the small pipeline."""
    root = make_pipeline(tmp_path / "checkout")
    options = ["--disk", disk, "--root", str(root), "--megabytes", "64"]
    options += ["--overrides", json.dumps(training(15.0))]
    said = drilled("disk", *options, "--stage", "train@a", "--command", "train models/a.txt")
    assert "Kept from before: prepare" in said
    assert "The next run: 4 stages: " in said
