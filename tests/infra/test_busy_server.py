"""The server answers while many write to its SQLite database."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Running

from infra.local_prefect import LocalPrefect, free_port
from tests.drills.watch import load


@pytest.mark.slow
def test_server_answers_under_concurrent_writes(
    tmp_path: Path, make_pipeline: Callable[[Path], Path]
) -> None:
    """With SQLAlchemy 2.0 a request of such a minute waits for up to a minute."""
    root = make_pipeline(tmp_path / "root")
    prefect = LocalPrefect(root=root, home=tmp_path / "home", port=free_port())
    settings = temporary_settings({PREFECT_API_URL: f"{prefect.url}/api"})
    with prefect.running(), settings, get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="nobody", type="process"))
        flow = client.create_flow_from_name("many")
        deployment = client.create_deployment(flow, name="many", work_pool_name="nobody")
        end = time.monotonic() + 60.0

        def write() -> int:
            done = 0
            while time.monotonic() < end:
                run = client.create_flow_run_from_deployment(deployment)
                for state in (Running(), Completed()):
                    client.set_flow_run_state(run.id, state, force=True)
                done += 1
            return done

        longest = 0.0
        with ThreadPoolExecutor() as pool:
            writing = [pool.submit(write) for _ in range(4)]
            while time.monotonic() < end:
                start = time.monotonic()
                assert httpx.get(f"{prefect.url}/api/health", timeout=90).is_success
                longest = max(longest, time.monotonic() - start)
                time.sleep(0.1)
            done = [each.result() for each in writing]
    print(f"{sum(done)} runs; the longest that an answer took: {longest:.1f} s; {load()}")  # noqa: T201
    assert min(done) > 0
    assert longest < 10.0
