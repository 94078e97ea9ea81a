"""Start flow runs on a local Prefect server, find their processes, and wait for their end."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from chunk_grpo.git import resolved
from chunk_grpo.orchestration.clones import make_clone
from infra.local_prefect import LocalPrefect, free_port, stop_trees
from infra.setup import ROOT
from tests.drills.command import DrillError
from tests.override_strings import with_override_strings
from tests.waiting import wait_for

_BUSY_SECONDS = 10  # retries of a request to a busy server, one per second

FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}

Run = dict[str, Any]
"""A flow run or task run as returned by the server."""


@dataclass(frozen=True)
class Watch:
    """Access to a local Prefect server and the processes of its workers."""

    prefect: LocalPrefect
    _workers: ExitStack

    def start_worker(self, pool: str) -> None:
        """Start a worker as another machine would; it is stopped at the end of `watching`."""
        self._workers.enter_context(self.worker(pool, self.prefect.root, self.prefect.environment))

    @contextmanager
    def worker(self, pool: str, root: Path, environment: Mapping[str, str]) -> Iterator[None]:
        """Run a worker in a checkout."""
        command = [sys.executable, "-m", "infra.worker", "--pool", pool]
        with (self.prefect.home / f"worker-{pool}-again.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            yield
        finally:
            if process.poll() is None:
                stop_trees([psutil.Process(process.pid)])
            process.wait()

    def start(self, deployment: str = "chunk-grpo/full", **parameters: Any) -> str:
        """Schedule a run of a deployment for now; return its id."""
        found = self.ask("GET", f"deployments/name/{deployment}")
        body = {"parameters": with_override_strings(parameters)}
        return str(self.ask("POST", f"deployments/{found['id']}/create_flow_run", body)["id"])

    def command(self, deployment: str = "chunk-grpo/full", **parameters: Any) -> tuple[int, str]:
        """Run `prefect deployment run DEPLOYMENT --watch`; return its exit status and output."""
        command = [sys.executable, "-m", "prefect", "deployment", "run", deployment, "--watch"]
        done = subprocess.run(
            [*command, "--params", json.dumps(with_override_strings(parameters))],
            cwd=self.prefect.root,
            env=self.prefect.environment | {"COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def cancel(self, run: str) -> None:
        """Cancel a run as the UI's button does."""
        state = {"type": "CANCELLING", "name": "Cancelling"}
        self.ask("POST", f"flow_runs/{run}/set_state", {"state": state})

    def run(self, run: str) -> Run:
        """The flow run with this id."""
        return dict(self.ask("GET", f"flow_runs/{run}"))

    def children(self, run: str, name: str | None = None) -> list[Run]:
        """Flow runs started by this one, oldest first; with `name`, only those of that name."""
        mine = {"parent_flow_run_id": {"any_": [run]}}
        found = self.ask("POST", "flow_runs/filter", {"flow_runs": mine, "sort": "EXPECTED_START_TIME_ASC"})
        return [child for child in found if name in (None, child["name"])]

    def tasks(self, run: str) -> list[Run]:
        """Task runs of a flow run, without those that represent another flow run; retries are one task run."""
        mine = {"flow_run_id": {"any_": [run]}}
        found = self.ask("POST", "task_runs/filter", {"task_runs": mine, "sort": "EXPECTED_START_TIME_ASC"})
        return [task for task in found if "run_deployment" not in task["task_key"]]

    def states(self, run: str) -> list[str]:
        """Types of the states of a flow run, in order of time."""
        history = self.ask("GET", "flow_run_states/", flow_run_id=run)
        return [state["type"] for state in sorted(history, key=lambda state: state["timestamp"])]

    def ended(self, run: str, seconds: float) -> Run:
        """Wait for the end of a flow run; return the run."""

        def final() -> Run | None:
            found = self.run(run)
            return found if found["state_type"] in FINAL else None

        return wait_for(final, seconds, f"the end of run {run}")

    def outcomes(self, run: str, preset: str = "%") -> dict[str, str]:
        """Outcome of each stage, from the outcome tables of a flow run."""
        mine = {"flow_run_id": {"any_": [run]}, "key": {"like_": f"outcomes-{preset}"}}
        tables = self.ask("POST", "artifacts/filter", {"artifacts": mine, "sort": "CREATED_DESC"})
        rows = [
            [cell.strip() for cell in line.split("|")]
            for table in reversed(tables)
            for line in table["data"].splitlines()
            if line.startswith("| ")
        ]
        return {row[1]: row[3] for row in rows if row[1] != "stage"}

    def latest_artifact(self, key: str) -> str:
        """Text of the newest artifact with this key, of any run."""
        return str(self.ask("GET", f"artifacts/{key}/latest")["data"])

    def log(self, run: str) -> str:
        """Log of a flow run, up to 200 lines."""
        body = {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC"}
        return "\n".join(line["message"] for line in self.ask("POST", "logs/filter", body))

    def busy(self, pool: str) -> int:
        """Number of flow runs that hold a slot of a work pool."""
        live = {"state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}}
        found = self.ask("POST", "flow_runs/filter", {"flow_runs": live, "work_pools": {"name": {"any_": [pool]}}})
        return len(found)

    def engine(self, run: str) -> psutil.Process:
        """Process of a flow run; its parent is the worker."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                mine = process.environ().get("PREFECT__FLOW_RUN_ID") == run
                if mine and process.cmdline()[1:] == ["-m", "prefect.engine"]:
                    return process
        raise DrillError(f"flow run {run} has no process")

    def stage(self, run: str, command: str) -> psutil.Process | None:
        """Python process of a stage of a flow run, found by a part of its command line; not DVC's shell."""
        with suppress(DrillError, psutil.NoSuchProcess):
            for process in self.engine(run).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    line = process.cmdline()
                    if command in " ".join(line) and line[0].rpartition("/")[2].startswith("python"):
                        return process
        return None

    def ask(self, method: str, path: str, body: Any = None, **parameters: str) -> Any:
        """Send a request; retry while the server's database is busy, like Prefect's client."""
        url = f"{self.prefect.url}/api/{path}"
        for _ in range(_BUSY_SECONDS):
            response = httpx.request(method, url, json=body, params=parameters, timeout=60)
            if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            time.sleep(1)
        if response.is_error:
            raise DrillError(f"{method} {url}: {response.status_code}: {response.text[:500]}")
        return response.json() if response.content else None


@contextmanager
def watching(prefect: LocalPrefect) -> Iterator[Watch]:
    """Run the server and its workers; stop them, and workers started meanwhile, at the end."""
    with prefect.running(), ExitStack() as workers:
        yield Watch(prefect, workers)


@contextmanager
def serving(root: Path, gpu_workers: int = 1) -> Iterator[Watch]:
    """Clone this repository at its commit into a new folder, and serve the clone with its own DVC cache."""
    make_clone(ROOT, resolved(ROOT, "HEAD"), root)
    server = LocalPrefect(root=root, home=root / ".prefect", port=free_port(), gpu_workers=gpu_workers)
    with watching(server) as watch:
        yield watch


def tree(root: psutil.Process) -> list[psutil.Process]:
    """A process and its current descendants; later orphans could no longer be assigned to it."""
    return [root, *root.children(recursive=True)]


def seconds_until_gone(processes: Sequence[psutil.Process], limit: float) -> float:
    """Wait until processes have ended (zombies count as ended); return the seconds."""
    start = time.monotonic()

    def alive() -> list[psutil.Process]:
        return [process for process in processes if lives(process)]

    wait_for(lambda: not alive(), limit, "the end of " + ", ".join(map(str, alive())))
    return time.monotonic() - start


def lives(process: psutil.Process) -> bool:
    """Whether a process is alive and not a zombie."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def load() -> str:
    """Load of this machine, as context for measured seconds."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def damaged_objects(cache: Path) -> list[Path]:
    """Objects of a DVC cache whose name is not the MD5 of their content."""
    objects = [path for path in (cache / "files" / "md5").rglob("*") if path.is_file()]
    if not objects:
        raise DrillError(f"{cache} has no objects")
    return [
        path
        for path in objects
        if path.parent.name + path.name.removesuffix(".dir") != hashlib.md5(path.read_bytes()).hexdigest()
    ]
