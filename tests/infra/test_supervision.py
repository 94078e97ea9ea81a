"""Notifications of failed runs, runs whose server is away, and processes of `make serve` that end."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
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


def answers(prefect: LocalPrefect) -> bool:
    try:
        return httpx.get(f"{prefect.url}/api/health").is_success
    except httpx.TransportError:
        return False


@pytest.mark.timeout(900)
@pytest.mark.parametrize("names", [("worker-gpu", "reports"), ("server",), ("worker-cpu",)], ids=" ".join)
def test_make_serve_starts_its_processes_again_and_the_run_completes(
    names: tuple[str, ...], tmp_path: Path, make_pipeline: Callable[[Path], Path]
) -> None:
    """They are killed while a training is running."""
    root, port = make_pipeline(tmp_path / "root"), free_port()
    parts = {
        "server": "infra.server",
        "reports": "infra.reports",
        "worker-cpu": "local-cpu",
        "worker-gpu": "local-gpu",
    }
    with make_serve(root, port) as (serve, log):
        prefect = LocalPrefect(root=root, home=root / ".prefect", port=port)
        family = psutil.Process(serve.pid)
        run = start_run(prefect, preset="smoke", overrides=of_variant_a(eta=15 / 60))
        wait_for(lambda: processes(family, "stages.work train"), 120, "training")
        for name in names:
            (process,) = [it for it in family.children() if parts[name] in " ".join(it.cmdline())]
            process.kill()
        wait_for(lambda: log.read_text().count("is started again in 1 s") == len(names), 30, "seen")
        wait_for(lambda: len(family.children()) == len(parts), 60, "started again")
        wait_for(lambda: answers(prefect), 60, "the server answers")
        wait_for(lambda: state(prefect, run)[0] == "COMPLETED", 500, "completed")
        assert serve.poll() is None
        assert all(f"{name} ended with -9" in log.read_text() for name in names)
