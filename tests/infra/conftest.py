"""A served small pipeline, PostgreSQL, and questions to a Prefect server."""

import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from infra.local_prefect import LocalPrefect, free_port, stop_trees
from tests.drills.watch import Watch
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, make_pipeline: Callable[[Path], Path]) -> Iterator[LocalPrefect]:
    """The small pipeline, as `make serve` serves it."""
    root = make_pipeline(tmp_path_factory.mktemp("served"))
    with LocalPrefect(root=root, home=root / ".prefect", port=free_port()).running() as prefect:
        yield prefect


@pytest.fixture
def postgres() -> Iterator[tuple[str, str]]:
    """A PostgreSQL server of its own on loopback: URL for Prefect, and the password in it.

    It refuses to run as root, and could not read a folder of pytest's then: an account of the system runs it.
    """
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))  # not on the PATH there
    programs = debian[-1].parent if debian else Path(shutil.which("postgres") or "postgres is not installed").parent
    account = "postgres" if "postgres" in {entry.pw_name for entry in pwd.getpwall()} else "nobody"
    user: dict[str, Any] = {"user": account} if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="chunk-grpo-postgres-"))
    password, port = secrets.token_hex(16), free_port()
    (folder / "password").write_text(password)
    if user:
        shutil.chown(folder, account)
        shutil.chown(folder / "password", account)
    options = [f"--pwfile={folder / 'password'}", "--username=prefect", "--auth=scram-sha-256", "--no-sync"]
    initdb = [programs / "initdb", "-D", folder / "data", *options]
    subprocess.run(initdb, check=True, capture_output=True, cwd=folder, **user)
    run = [programs / "postgres", "-D", folder / "data", "-h", "127.0.0.1", "-p", str(port), "-k", folder]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(run, cwd=folder, stdout=log, stderr=log, **user)
    try:
        ready = [programs / "pg_isready", "-h", "127.0.0.1", "-p", str(port)]
        wait_for(lambda: subprocess.run(ready, capture_output=True).returncode == 0, 30, "PostgreSQL")
        yield f"postgresql+asyncpg://prefect:{password}@127.0.0.1:{port}/postgres", password
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder)


@contextmanager
def answering(status: int, body: bytes = b"") -> Iterator[tuple[int, list[str]]]:
    """The port of a server that always answers so, and the paths that it was asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield server.server_port, paths
        server.shutdown()


def watched(prefect: LocalPrefect) -> Watch:
    return Watch(prefect, ExitStack())


def ask(prefect: LocalPrefect, path: str, method: str = "POST", **body: Any) -> Any:
    """One request to the server."""
    return watched(prefect).ask(method, path, body)


def start_run(prefect: LocalPrefect, **parameters: Any) -> str:
    """Schedule a run of chunk-grpo/full; its id."""
    return watched(prefect).start(**parameters)


def state(prefect: LocalPrefect, run: str) -> tuple[str, int]:
    """Type of a flow run's state, and its run count."""
    found = watched(prefect).run(run)
    return str(found["state_type"]), int(found["run_count"])


@contextmanager
def make_serve(root: Path, port: int, **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """What `make serve` starts, once it serves, and its log; killed with all that it started on leaving.

    It asks for no password unless `environment` says so.
    """
    log = root.parent / "log"
    shell = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    shell |= {"PREFECT_PORT": str(port), "AUTH": "0", **environment}
    with log.open("wb") as stream:
        command = [sys.executable, "-m", "infra.serve"]
        serve = subprocess.Popen(command, cwd=root, env=shell, stdout=stream, stderr=stream)
    try:
        wait_for(lambda: b"Ctrl-C" in log.read_bytes() or serve.poll() is not None, 120, "served")
        assert serve.poll() is None, log.read_text()
        yield serve, log
    finally:
        if serve.poll() is None:
            stop_trees([psutil.Process(serve.pid)])
            serve.wait()


def processes(root: psutil.Process, part: str) -> list[psutil.Process]:
    """Descendants of a process whose command line has this part."""
    found = []
    for child in root.children(recursive=True):
        try:
            if part in " ".join(child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def set_up(prefect: LocalPrefect, *options: str, **environment: str) -> None:
    """`python -m infra.setup` for this server."""
    command = [sys.executable, "-m", "infra.setup", *options]
    result = subprocess.run(
        command, cwd=prefect.root, env=prefect.environment | environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def snapshot(prefect: LocalPrefect) -> dict[str, Any]:
    """Objects that set-up makes, without their times."""
    pool = "id name type concurrency_limit is_paused base_job_template"
    deployment = "id name paused parameters pull_steps schedules global_concurrency_limit entrypoint"
    kept = {"work_pools": pool, "automations": "id name enabled trigger actions", "deployments": deployment}
    parts = {}
    for what, keys in kept.items():
        rows = ask(prefect, f"{what}/filter")
        parts[what] = {_name(row): {key: row.get(key) for key in keys.split()} for row in rows}
        assert len(parts[what]) == len(rows), f"doubles: {sorted(map(_name, rows))}"
    return parts


def _name(row: dict[str, Any]) -> str:
    """Name of a deployment; for deployments of the gpu pool, its flow's name."""
    return str(row["entrypoint"].rpartition(":")[2] if "entrypoint" in row else row["name"])
