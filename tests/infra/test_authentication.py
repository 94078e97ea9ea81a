"""`make serve` with the string that it makes, and with one of the user's, as docs/deploy.md says."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from chunk_grpo.orchestration.served import AUTH, PORT
from infra.local_prefect import free_port

from .conftest import make_serve

pytestmark = pytest.mark.slow

STRING = "somebody:a-password-of-the-test"


def test_server_requires_password_and_run_completes(tmp_path: Path, make_pipeline: Callable[[Path], Path]) -> None:
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


def typed(root: Path, port: int, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command typed in the folder of `make serve`, in a shell that knows its address alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "CHUNK_GRPO_"))}
    url = {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=root, env=kept | url | variables, capture_output=True, text=True)


def test_commands_in_folder_find_generated_password(tmp_path: Path, make_pipeline: Callable[[Path], Path]) -> None:
    root, port = make_pipeline(tmp_path / "root"), free_port()
    run = ["prefect", "deployment", "run", "chunk-grpo/full", "--watch"]
    params = ["--params", '{"preset": "smoke"}']
    with make_serve(root, port, AUTH="1") as (serve, log):
        home = root / ".prefect"
        assert (home.stat().st_mode & 0o777, (home / AUTH).stat().st_mode & 0o777) == (0o700, 0o600)
        assert httpx.post(f"http://127.0.0.1:{port}/api/work_pools/filter", json={}).status_code == 401
        for words in (["infra.setup"], [*run, *params]):
            done = typed(root, port, *words)
            assert done.returncode == 0, done.stdout + done.stderr + "(is this package installed anew? make tools)"
        wrong = typed(root, port, "infra.setup", PREFECT_API_AUTH_STRING="a:b")
        assert "refuses access (status 401)" in wrong.stderr
        string = (home / AUTH).read_text().strip()
        serve.send_signal(signal.SIGINT)
        assert serve.wait(90) == 0
    assert not [path for path in (log, *home.glob("*.log")) if string in path.read_text()]
    assert (home / PORT).read_text() == ""
