"""Published models are evaluated again on a schedule: the preset `smoke`, with its real stages."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from infra.local_prefect import LocalPrefect, free_port
from infra.smoke import latest_artifact

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

REPOSITORY = Path(__file__).resolve().parents[2]
INTERVAL = 120.0


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPrefect]:
    """This repository, served; what was run before comes from its DVC cache."""
    home = tmp_path_factory.mktemp("home")
    with LocalPrefect(root=REPOSITORY, home=home, port=free_port()).running() as served:
        yield served


def run(prefect: LocalPrefect, deployment: str, **parameters: Any) -> str:
    command = [sys.executable, "-m", "prefect", "deployment", "run", f"chunk-grpo/{deployment}", "--watch"]
    result = subprocess.run(
        [*command, "--params", json.dumps(parameters)],
        cwd=prefect.root,
        env=prefect.environment | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def api(prefect: LocalPrefect, method: str, path: str, body: Any = None) -> Any:
    answer = httpx.request(method, f"{prefect.url}/api/{path}", json=body).raise_for_status()
    return answer.json() if answer.content else None


def evaluations(prefect: LocalPrefect) -> dict[str, set[int]]:
    """Names and image seeds of the evaluations in the history."""
    file = prefect.home / "published" / "smoke" / "history.parquet"
    found: dict[str, set[int]] = {}
    for row in pq.read_table(file).to_pylist() if file.exists() else []:
        found.setdefault(row["evaluation"], set()).add(row["image_seed"])
    return found


def test_without_a_published_run_there_is_nothing_to_evaluate(prefect: LocalPrefect) -> None:
    assert "No finished run of preset smoke is published" in run(prefect, "reevaluate", preset="smoke")


def test_two_runs_of_the_schedule_stand_in_the_history(prefect: LocalPrefect) -> None:
    run(prefect, "full", preset="smoke")
    published = prefect.home / "published" / "smoke"
    assert json.loads((published / "run.json").read_text())["complete"] is True
    assert (published / "report" / "index.html").is_file()
    trained = (published / "dvc.lock").read_bytes()
    deployment = api(prefect, "GET", "deployments/name/chunk-grpo/reevaluate")
    schedule = {
        "schedule": {"interval": INTERVAL, "anchor_date": datetime.now(timezone.utc).isoformat()},
        "active": True,
        "parameters": {"preset": "smoke"},
    }
    (created,) = api(prefect, "POST", f"deployments/{deployment['id']}/schedules", [schedule])
    deadline = time.monotonic() + 900
    while len(evaluations(prefect)) < 2:
        assert time.monotonic() < deadline, "two evaluations were not recorded in 15 minutes"
        time.sleep(2)
    api(prefect, "DELETE", f"deployments/{deployment['id']}/schedules/{created['id']}")
    names = evaluations(prefect)
    assert all(len(seeds) == 1 for seeds in names.values())
    assert len({seed for seeds in names.values() for seed in seeds}) == len(names)  # new images each time
    while not all(name in (page := latest_artifact(prefect, "trend-smoke")) for name in names):
        assert time.monotonic() < deadline, f"the trend does not show {', '.join(names)}"
        time.sleep(2)
    assert "data:image/png;base64," in page
    assert (
        published / "dvc.lock"
    ).read_bytes() == trained  # the models, and what was published of them, stay


def test_scoring_again_without_a_change_is_nothing_new(prefect: LocalPrefect) -> None:
    before = evaluations(prefect)
    assert "Nothing new" in run(prefect, "reevaluate", preset="smoke", new_seeds=False)
    assert evaluations(prefect) == before


def test_other_settings_of_a_scorer_are_recorded_and_not_compared(prefect: LocalPrefect) -> None:
    changes = {"scorers": {"shapes-exact": {"splits": ["eval"]}}}
    text = run(prefect, "reevaluate", preset="smoke", new_seeds=False, overrides=changes)
    assert "scores moved" in text or "First" in text or "scorer changed" in text
