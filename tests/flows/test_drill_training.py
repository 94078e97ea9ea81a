"""The drill that kills a real training behind its first checkpoint: the next one ends with the same bytes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.flows.faults import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("victim", ["stage", "engine"])
def test_a_killed_training_goes_on_from_its_checkpoint_to_the_same_bytes(victim: str) -> None:
    command = [sys.executable, "-m", "tests.drills.training", "--kill", victim]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    print(result.stdout)  # noqa: T201
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Resumes from iteration-" in result.stdout
    assert "The same bytes in " in result.stdout
