"""`make serve` with authentication, as docs/deploy.md says."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from infra.local_prefect import free_port

from .conftest import make_serve

pytestmark = pytest.mark.slow

STRING = "somebody:a-password-of-the-test"


def test_the_server_refuses_who_has_not_the_string_and_a_run_completes(
    tmp_path: Path, make_pipeline: Callable[[Path], Path]
) -> None:
    root, port = make_pipeline(tmp_path / "root"), free_port()
    url = f"http://127.0.0.1:{port}/api"
    client = {"PREFECT_API_AUTH_STRING": STRING, "PREFECT_API_URL": url}
    with make_serve(root, port, PREFECT_SERVER_API_AUTH_STRING=STRING, **client) as (serve, log):
        assert httpx.post(f"{url}/work_pools/filter", json={}).status_code == 401
        options = ["--watch", "--params", '{"preset": "smoke", "until": "prepare"}']
        command = [sys.executable, "-m", "prefect", "deployment", "run", "chunk-grpo/full", *options]
        result = subprocess.run(command, cwd=root, env=os.environ | client, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
        answer = httpx.post(f"{url}/work_pools/gpu/workers/filter", json={}, auth=tuple(STRING.split(":")))
        assert [worker["status"] for worker in answer.raise_for_status().json()] == ["ONLINE"]
        serve.send_signal(signal.SIGINT)
        assert serve.wait(90) == 0
    logs = [log, *root.glob(".prefect/*.log")]
    assert not [path for path in logs if "a-password" in path.read_text()]
