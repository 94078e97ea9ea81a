"""Flow runs whose process, machine or server is lost, and who is told of what: on a real server, with kill -9."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.local_prefect import LocalPrefect, stop_trees
from tests.webhook import webhook

from .conftest import processes, start_run, state, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


@pytest.fixture(scope="module")
def told(served: LocalPrefect) -> Iterator[list[str]]:
    """What a webhook was told, which set-up has made known to the server."""
    with webhook(served) as texts:
        yield texts


def of_variant_a(**values: float) -> dict[str, Any]:
    """Overrides: of a training `eta` is the minutes that it takes, `kl_coef` its exit code."""
    return {"variants": {"a": values}}


def training(prefect: LocalPrefect) -> list[psutil.Process]:
    return processes(prefect.process("worker-gpu"), "stages.work train")


def test_a_run_whose_engine_was_killed_runs_once_more(served: LocalPrefect, told: list[str]) -> None:
    run = start_run(served, preset="smoke", overrides=of_variant_a(eta=3 / 60))
    wait_for(lambda: training(served), 90, "training")
    (engine,) = processes(served.process("worker-cpu"), "prefect.engine")
    engine.kill()
    wait_for(lambda: state(served, run) == ("CRASHED", 1), 30, "crashed")
    wait_for(lambda: state(served, run) == ("COMPLETED", 2), 180, "completed")
    assert told == []


def test_a_failed_run_is_told_once_and_not_run_again(served: LocalPrefect, told: list[str]) -> None:
    run = start_run(served, preset="smoke", overrides=of_variant_a(kl_coef=3.0))
    wait_for(lambda: state(served, run)[0] in ENDED, 120, "ended")
    time.sleep(45)
    assert state(served, run) == ("FAILED", 1)
    (text,) = told
    assert "stage train@a failed with exit code 3 (bad input)" in text
    log = (served.home / "server.log").read_text()
    assert "services/secret" not in log


def test_a_moved_score_is_told(served: LocalPrefect, told: list[str]) -> None:
    told.clear()
    program = (
        "from prefect.events import emit_event; from prefect.events.worker import EventsWorker\n"
        "name = 'chunk-grpo.score.moved'\n"
        "emit_event(name, payload={'text': '1 of 2 scores moved:\\n\\n- a \"b\"'},\n"
        "    resource={'prefect.resource.id': f'{name}.smoke', 'prefect.resource.name': 'smoke'})\n"
        "EventsWorker.drain_all(timeout=20)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=served.root, env=served.environment, check=True)
    wait_for(lambda: told, 30, "the webhook was called")
    assert told == ['A score has moved. 1 of 2 scores moved:\n\n- a "b"']


def test_a_run_outlives_a_server_that_is_away_for_half_a_minute(served: LocalPrefect) -> None:
    """Its training ends while the server is away."""
    run = start_run(served, preset="smoke", overrides=of_variant_a(eta=15 / 60))
    wait_for(lambda: training(served), 90, "training")
    served.process("server").kill()
    wait_for(lambda: not training(served), 60, "training ended")
    time.sleep(15)
    served.start_server()
    assert state(served, run) == ("RUNNING", 1)
    wait_for(lambda: state(served, run)[0] in ENDED, 180, "ended")
    assert state(served, run) == ("COMPLETED", 1)


def test_a_lost_machine_s_run_is_crashed_in_three_minutes_and_runs_on_another(
    served: LocalPrefect, tmp_path: Path
) -> None:
    """Worker and engine are gone at once, so nobody reports anything."""
    run = start_run(served, preset="smoke", overrides=of_variant_a(eta=4 / 60))
    wait_for(lambda: training(served), 90, "training")
    worker = served.process("worker-cpu")
    lost = [worker, *worker.children(recursive=True)]
    for process in lost:
        process.kill()
    wait_for(lambda: state(served, run) == ("CRASHED", 1), 180, "crashed")
    with (tmp_path / "worker.log").open("wb") as log:
        command = [sys.executable, "-m", "infra.worker", "--pool", "cpu"]
        other = subprocess.Popen(command, cwd=served.root, env=served.environment, stdout=log, stderr=log)
    try:
        wait_for(lambda: state(served, run) == ("COMPLETED", 2), 180, "completed by another worker")
    finally:
        stop_trees([psutil.Process(other.pid)])
        other.wait()
