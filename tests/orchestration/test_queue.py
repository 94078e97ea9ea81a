"""Experiments of `dvc queue` on the small pipeline."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_queued_experiments_run_one_after_another(pipeline: Path, shell: Callable[..., str]) -> None:
    def dvc(*arguments: str) -> str:
        return shell(pipeline, sys.executable, "-m", "dvc", *arguments)

    dvc("exp", "run", "--queue", "--name", "first", "-S", "report.title=One")
    dvc("exp", "run", "--queue", "--name", "second", "-S", "report.title=Two")
    dvc("queue", "start", "--jobs", "1")
    wait_for(lambda: dvc("queue", "status").count("Success") == 2, 240, "both experiments")
    assert all(f"[{name}]" in dvc("exp", "list") for name in ("first", "second"))
    dvc("exp", "apply", "second")
    assert (pipeline / "prepared.txt").read_text() == "Two"
    assert "title: Two" in (pipeline / "params.yaml").read_text()
