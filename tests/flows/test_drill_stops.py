"""The drill that kills and interrupts `dvc repro` of a real training at random moments, with two hits of each."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.flows.faults import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_kills_and_interrupts_leave_no_process_and_change_no_byte() -> None:
    command = [sys.executable, "-m", "tests.drills.stops", "--seed", "7", "--count", "2"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    print(result.stdout)  # noqa: T201
    assert result.returncode == 0, result.stdout + result.stderr
    assert "The same bytes after 4 hits; " in result.stdout
