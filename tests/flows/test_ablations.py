"""Several presets in one run, and two workers of the pool `gpu`, on the small pipeline."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.local_prefect import LocalPrefect, free_port
from infra.smoke import latest_artifact


@pytest.fixture(scope="module")
def prefect(
    tmp_path_factory: pytest.TempPathFactory, make_pipeline: Callable[[Path], Path]
) -> Iterator[LocalPrefect]:
    """The small pipeline, served, with two GPU workers."""
    root = make_pipeline(tmp_path_factory.mktemp("served") / "root")
    server = LocalPrefect(root=root, home=root / ".prefect", port=free_port(), gpu_workers=2)
    with server.running() as served:
        yield served


def run(prefect: LocalPrefect, **parameters: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prefect", "deployment", "run", "chunk-grpo/ablations", "--watch"]
    return subprocess.run(
        [*command, "--params", json.dumps(parameters)],
        cwd=prefect.root,
        env=prefect.environment | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


def trainings(prefect: LocalPrefect) -> dict[str, tuple[datetime, datetime]]:
    """When the trainings that have run began and ended."""
    runs = httpx.post(f"{prefect.url}/api/flow_runs/filter", json={}).raise_for_status().json()
    return {
        f"{run['parameters']['spec']['preset']}/{run['name']}": (
            datetime.fromisoformat(run["start_time"]),
            datetime.fromisoformat(run["end_time"]),
        )
        for run in runs
        if run["name"].startswith("train@")
    }


def outcomes(prefect: LocalPrefect, preset: str) -> list[list[str]]:
    table = latest_artifact(prefect, f"outcomes-{preset}")
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if "@" in line]
    return [row[1:4] for row in rows]


@pytest.mark.slow
def test_stages_of_different_variants_run_side_by_side_up_to_the_limit(prefect: LocalPrefect) -> None:
    """Four trainings of ten seconds on two workers."""
    seconds = {"variants": {name: {"eta": 10.0} for name in "ab"}}
    other = {"report": {"title": "of both"}, **seconds}
    result = run(prefect, presets=["tiny", "smoke"], overrides=other)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "8 stages: " in result.stdout
    times = trainings(prefect)
    # Both presets train the same here, and one computation is done once: the second waits for the first.
    assert set(times) == {"tiny/train@a", "tiny/train@b", "smoke/train@a", "smoke/train@b"}
    events = sorted([(start, 1) for start, _ in times.values()] + [(end, -1) for _, end in times.values()])
    at_once = [sum(change for _, change in events[: index + 1]) for index in range(len(events))]
    assert max(at_once) == 2
    for preset in ("tiny", "smoke"):
        assert [row[:2] for row in outcomes(prefect, preset)] == [["train@a", "gpu"], ["train@b", "gpu"]]
    found = [row[2] for preset in ("tiny", "smoke") for row in outcomes(prefect, preset)]
    assert sorted(found) == ["ran", "ran", "restored", "restored"]


@pytest.mark.slow
def test_a_failing_variant_does_not_stop_the_others(prefect: LocalPrefect) -> None:
    changes = {"variants": {"a": {"kl_coef": 3.0}}, "report": {"title": "one fails"}}
    result = run(prefect, presets=["tiny"], overrides=changes)
    assert result.returncode == 1
    assert "stage train@a failed with exit code 3 (bad input)" in result.stdout
    table = latest_artifact(prefect, "outcomes-tiny")
    assert "| train@a | gpu | **failed** |" in table
    assert "| train@b | gpu | ran |" in table
    assert "| report |  | not reached |" in table


@pytest.mark.slow
def test_unknown_variants_and_wrong_overrides_are_refused_before_any_stage(prefect: LocalPrefect) -> None:
    result = run(prefect, presets=["tiny"], variants=["c"])
    assert result.returncode == 1
    assert "variants must be of a, b, got c" in result.stdout
    refused = run(prefect, presets=["tiny"], overrides={"train": {"iterations": "two"}})
    assert refused.returncode == 1
    assert "train" in refused.stdout + refused.stderr
