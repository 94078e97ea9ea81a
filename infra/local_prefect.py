"""A Prefect server on SQLite with work pools, deployments and workers: started together, stopped together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import StateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Crashed
from prefect.workers.process import ProcessWorker

HOST = "127.0.0.1"
POOLS: Mapping[str, int | None] = {"cpu": None, "gpu": 1}
"""Work pools and how many flow runs each may have at once; `gpu` one for each GPU of this machine."""

_START_SECONDS = 120.0
_STOP_SECONDS = 40.0  # a worker gives its flow runs 30 s


class SetUpError(Exception):
    """The server, a worker or a deployment could not be started."""


@dataclass
class LocalPrefect:
    """What `make serve` runs.

    Attributes:
        root: the repository; workers load the flows from there.
        home: PREFECT_HOME: database, server log, clones of the flow runs.
        port: of server and UI, on the loopback interface alone.
    """

    root: Path
    home: Path
    port: int = 4200
    _children: list[tuple[str, subprocess.Popen[bytes]]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The UI."""
        return f"http://{HOST}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """For every `prefect` command that is to talk to this server; prefect.toml in `root` has the rest."""
        return os.environ | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": f"{self.url}/api",
            "DO_NOT_TRACK": "1",
        }

    @contextmanager
    def running(self) -> Iterator[LocalPrefect]:
        """Start everything, wait until it is ready, and stop everything at the end, whatever that end is.

        Raises:
            SetUpError: the port is taken, or something did not start.
        """
        if _listens(self.port):
            raise SetUpError(f"port {self.port} is in use; choose another one, as in PREFECT_PORT=4300")
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # So a shell starts what it runs in the background. A worker would inherit it, and it needs SIGINT to
            # end itself.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.home.mkdir(parents=True, exist_ok=True)
        try:
            self._start("server", "server", "start", "--host", HOST, "--port", str(self.port))
            self._wait_for_server()
            self._end_unfinished_runs()
            self._create_pools()
            for pool in POOLS:
                self._start(f"worker-{pool}", "worker", "start", "--pool", pool, "--name", f"local-{pool}")
            self._deploy()
            yield self
        finally:
            self.stop()

    def check(self) -> None:
        """Raise when the server or a worker has ended.

        Raises:
            SetUpError: with its name, exit status and where its log is.
        """
        for name, process in self._children:
            if process.poll() is not None:
                log = self.home / f"{name}.log"
                raise SetUpError(f"{name} ended with {process.returncode}; see {log}")

    def _start(self, name: str, *arguments: str) -> None:
        """Start a `prefect` command in a group of its own, so that Ctrl-C reaches only this process."""
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                _prefect(arguments),
                cwd=self.root,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children.append((name, process))

    def _wait_for_server(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            with suppress(httpx.TransportError):  # not listening yet
                if httpx.get(f"{self.url}/api/health").is_success:
                    return
            time.sleep(0.5)
        raise SetUpError(f"no healthy server within {_START_SECONDS:.0f} s; see {self.home / 'server.log'}")

    def _create_pools(self) -> None:
        """Create the work pools, or bring those of an earlier start to the same settings."""
        template = ProcessWorker.get_default_base_job_template()
        with self._client() as client:
            for pool, limit in POOLS.items():
                create = WorkPoolCreate(
                    name=pool, type="process", base_job_template=template, concurrency_limit=limit
                )
                client.create_work_pool(create, overwrite=True)

    def _deploy(self) -> None:
        command = _prefect(["--no-prompt", "deploy", "--all", "--prefect-file", "infra/prefect.yaml"])
        result = subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            raise SetUpError(f"prefect deploy failed:\n{result.stdout}{result.stderr}")

    def _end_unfinished_runs(self) -> None:
        """End what no worker works on any more: it would keep its slot, and the next run would wait for ever.

        A run that waits in the queue stays there; a stage that waits for its run to go on does not.
        """
        live = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING, StateType.SCHEDULED]
        unfinished = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=live)))
        with self._client() as client:
            for run in client.read_flow_runs(flow_run_filter=unfinished):
                if run.state_type == StateType.SCHEDULED and run.parent_task_run_id is None:
                    continue
                # Prefect lets a cancelling run become nothing but cancelled.
                end = Cancelled if run.state_type == StateType.CANCELLING else Crashed
                client.set_flow_run_state(run.id, end(message="Its worker was stopped."))

    @contextmanager
    def _client(self) -> Iterator[SyncPrefectClient]:
        with temporary_settings({PREFECT_API_URL: f"{self.url}/api"}), get_client(sync_client=True) as client:
            yield client

    def stop(self) -> None:
        """Workers first, with their flow runs, while the server still takes the states that these report."""
        server = [process for name, process in self._children if name == "server"]
        _stop_all([process for name, process in self._children if name != "server"])
        try:
            if all(process.poll() is None for process in server) and _listens(self.port):
                self._end_unfinished_runs()
        finally:
            _stop_all(server)
            self._children.clear()


def _stop_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    stop_trees([psutil.Process(process.pid) for process in processes if process.poll() is None])
    for process in processes:
        process.wait()


def stop_trees(roots: Sequence[psutil.Process]) -> None:
    """End processes and all their descendants: SIGTERM to all, SIGKILL to what is left.

    Flow runs and stages have sessions of their own, which no signal to their worker's group would reach.
    """
    tree = list(roots)
    for root in roots:
        with suppress(psutil.NoSuchProcess):
            tree.extend(root.children(recursive=True))
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(tree, timeout=_STOP_SECONDS)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=5)


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _prefect(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "prefect", *arguments]
