"""Notifications of failed runs, and runs whose server is away."""

import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from infra.local_prefect import LocalPrefect
from tests.waiting import wait_for
from tests.webhook import webhook

from .conftest import processes, start_run, state

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


def test_a_failed_run_is_told_once_and_not_run_again(served: LocalPrefect, told: list[str]) -> None:
    run = start_run(served, preset="smoke", overrides=of_variant_a(kl_coef=3.0))
    wait_for(lambda: state(served, run)[0] in ENDED, 120, "ended")
    time.sleep(45)
    assert state(served, run) == ("FAILED", 1)
    (text,) = told
    assert "stage train@a failed with exit code 3 (bad input)" in text
    log = (served.home / "server.log").read_text()
    assert "services/secret" not in log


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
