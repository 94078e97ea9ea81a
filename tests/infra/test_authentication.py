"""`make serve` with authentication, as docs/deploy.md says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from infra.local_prefect import free_port, stop_trees

from .conftest import wait_for

pytestmark = pytest.mark.slow

STRING = "somebody:a-password-of-the-test"


def test_the_server_refuses_who_has_not_the_string_and_a_run_completes(
    tmp_path: Path, make_pipeline: Callable[[Path], Path]
) -> None:
    root, port, log = make_pipeline(tmp_path / "root"), free_port(), tmp_path / "log"
    url = f"http://127.0.0.1:{port}/api"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    client = environment | {"PREFECT_API_AUTH_STRING": STRING, "PREFECT_API_URL": url}
    served = client | {"PREFECT_PORT": str(port), "PREFECT_SERVER_API_AUTH_STRING": STRING}
    with log.open("wb") as stream:
        serve = subprocess.Popen(
            [sys.executable, "-m", "infra.serve"], cwd=root, env=served, stdout=stream, stderr=stream
        )
    try:
        wait_for(lambda: b"Ctrl-C" in log.read_bytes() or serve.poll() is not None, 120, "served")
        assert serve.poll() is None, log.read_text()
        assert httpx.post(f"{url}/work_pools/filter", json={}).status_code == 401
        options = ["--watch", "--params", '{"preset": "smoke", "until": "prepare"}']
        command = [sys.executable, "-m", "prefect", "deployment", "run", "chunk-grpo/full", *options]
        result = subprocess.run(command, cwd=root, env=client, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
        answer = httpx.post(f"{url}/work_pools/gpu/workers/filter", json={}, auth=tuple(STRING.split(":")))
        assert [worker["status"] for worker in answer.raise_for_status().json()] == ["ONLINE"]
        serve.send_signal(signal.SIGINT)
        assert serve.wait(90) == 0
    finally:
        if serve.poll() is None:
            stop_trees([psutil.Process(serve.pid)])
            serve.wait()
    assert "a-password" not in log.read_text()
    assert not [path for path in root.glob(".prefect/*.log") if "a-password" in path.read_text()]
