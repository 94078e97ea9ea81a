"""Prefect's own commands alone: `prefect deploy --all`, and workers in an empty folder that clone the repository."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import yaml
from prefect.blocks.system import Secret
from prefect.settings import PREFECT_API_URL, temporary_settings

from infra.local_prefect import LocalPrefect, free_port, stop_trees
from tests.waiting import wait_for

from .conftest import ask, start_run, state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What a user of Prefect sets, and DVC's cache for all clones of this user; nothing of this project."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("CHUNK_GRPO_")}
    found = base | {"PREFECT_HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    command = [sys.executable, "-m", "dvc", "config", "--global", "cache.dir", str(tmp_path / "cache")]
    subprocess.run(command, cwd=tmp_path, env=found, check=True)
    return found


@contextmanager
def worker(pool: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool]
    with (folder / f"{pool}.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        stop_trees([psutil.Process(process.pid)])
        process.wait()


def give_secret(prefect: LocalPrefect, pool: str, variable: str, value: str) -> None:
    """A secret in a block, which the base job template of a pool names."""
    with temporary_settings({PREFECT_API_URL: f"{prefect.url}/api"}):
        Secret(value=value).save("key")
    template = ask(prefect, f"work_pools/{pool}", "GET")["base_job_template"]
    template["variables"]["properties"]["env"]["default"] = {variable: "{{ prefect.blocks.secret.key }}"}
    ask(prefect, f"work_pools/{pool}", "PATCH", base_job_template=template)


def has(variable: str, value: str) -> bool:
    """Whether a process that a worker started has a variable."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            found.append(process.environ().get(variable))
    return value in found


def test_a_run_completes(tmp_path: Path, make_pipeline: Callable[[Path], Path], environment: dict[str, str]) -> None:
    root = make_pipeline(tmp_path / "root")
    prefect = LocalPrefect(root=root, home=tmp_path / "home", port=free_port())
    environment |= {"PREFECT_API_URL": f"{prefect.url}/api"}

    def command(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *words],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    with ExitStack() as running:
        running.callback(prefect.stop)
        prefect.home.mkdir()
        prefect.start_server()
        for pool in ("cpu", "gpu"):
            command("work-pool", "create", "--type", "process", pool)
        command("deploy", "--all")
        for pool in ("cpu", "gpu"):
            running.enter_context(worker(pool, tmp_path / "empty", environment))
        give_secret(prefect, "gpu", "AWS_SECRET_ACCESS_KEY", "of the block")
        run = start_run(prefect, preset="smoke")
        wait_for(lambda: has("AWS_SECRET_ACCESS_KEY", "of the block"), 300, "stage on pool gpu has the secret")
        wait_for(lambda: state(prefect, run)[0] in ("COMPLETED", "FAILED", "CRASHED"), 300, "run ended")
        assert state(prefect, run) == ("COMPLETED", 1), (tmp_path / "empty" / "cpu.log").read_text()
        deployments = ask(prefect, "deployments/filter")
    wanted = [one["name"] for one in yaml.safe_load((root / "prefect.yaml").read_text())["deployments"]]
    assert sorted(one["name"] for one in deployments) == sorted(wanted)
    assert len(set(wanted)) == len(wanted)
    assert (prefect.home / "published" / "smoke" / "report" / "report.md").is_file()
