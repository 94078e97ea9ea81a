"""Notifications of failed runs, runs whose server is away, and a process of `make serve` that ends."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.local_prefect import LocalPrefect, free_port
from tests.waiting import wait_for
from tests.webhook import webhook

from .conftest import ask, make_serve, processes, start_run, state, watched

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


@pytest.fixture(scope="module")
def told(served: LocalPrefect) -> Iterator[list[str]]:
    """Messages to a webhook that set-up registered at the server."""
    with webhook(served) as texts:
        yield texts


def of_variant_a(**values: float) -> dict[str, Any]:
    """Overrides: of a training `eta` is the minutes that it takes, `kl_coef` its exit code."""
    return {"variants": {"a": values}}


def training(prefect: LocalPrefect) -> list[psutil.Process]:
    return processes(prefect.process("worker-gpu"), "stages.work train")


def test_failed_run_notifies_once_and_is_not_retried(served: LocalPrefect, told: list[str]) -> None:
    run = start_run(served, preset="smoke", overrides=of_variant_a(kl_coef=3.0))
    wait_for(lambda: state(served, run)[0] in ENDED, 120, "ended")
    time.sleep(45)
    assert state(served, run) == ("FAILED", 1)
    (text,) = told
    assert "stage train@a failed with exit code 3 (bad input)" in text
    log = (served.home / "server.log").read_text()
    assert "services/secret" not in log


def test_a_run_outlives_a_server_that_is_away_for_half_a_minute(served: LocalPrefect) -> None:
    """Its training ends while the server is away. It keeps its place in the limit of its deployment."""
    run = start_run(served, preset="smoke", overrides=of_variant_a(eta=15 / 60))
    wait_for(lambda: training(served), 90, "training")
    served.process("server").kill()
    wait_for(lambda: not training(served), 60, "training ended")
    time.sleep(15)
    served.start_server()
    assert state(served, run) == ("RUNNING", 1)
    lease = watched(served).run(run)["state"]["state_details"]["deployment_concurrency_lease_id"]
    ask(served, f"v2/concurrency_limits/leases/{lease}/renew", lease_duration=300)
    wait_for(lambda: state(served, run)[0] in ENDED, 180, "ended")
    assert state(served, run) == ("COMPLETED", 1)


@pytest.mark.timeout(1500)
def test_a_lost_run_is_run_once_more_by_the_next_make_serve(
    tmp_path: Path, make_pipeline: Callable[[Path], Path]
) -> None:
    """A killed process ends `make serve`. The pause is longer than Prefect keeps timers by default."""
    root, port = make_pipeline(tmp_path / "root"), free_port()
    prefect = LocalPrefect(root=root, home=root / ".prefect", port=port)
    with make_serve(root, port) as (serve, log):
        run = start_run(prefect, preset="smoke", overrides=of_variant_a(eta=15 / 60))
        family = psutil.Process(serve.pid)
        wait_for(lambda: processes(family, "stages.work train"), 180, "training")
        for process in processes(family, "infra.server"):
            process.kill()
        assert serve.wait(120) == 75
        assert "server ended with -9; see" in log.read_text()
    time.sleep(330)  # an event that follows another one within five minutes may wait for it for 15
    with make_serve(root, port):
        assert state(prefect, run)[0] in ("RUNNING", "CRASHED")
        wait_for(lambda: state(prefect, run)[0] == "COMPLETED", 600, "completed")
        assert state(prefect, run)[1] == 2
