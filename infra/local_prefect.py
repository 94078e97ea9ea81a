"""A Prefect server with work pools, deployments and workers: started together, stopped together."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    temporary_settings,
)
from prefect.states import Cancelled, Cancelling
from pydantic import SecretStr

from chunk_grpo.environment import PUBLISH, REPORTS_URL
from chunk_grpo.orchestration.guard import tied
from chunk_grpo.stopping import stop_seconds
from infra import worker
from infra.runs import runs_in
from infra.setup import SetUp, SetUpError

HOST = "127.0.0.1"
DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
"""With its password: for the server alone, not for the workers and what they run."""

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_START_SECONDS = 120.0
STOP_MARGIN = 20.0  # beyond the time of a stage, for its flow run and the worker
_HURRY_SECONDS = 20.0  # for one answer of the server, when everything is about to end
_LOWEST_PORT, _PORTS = 20_000, 12_000  # for drills and checks


@dataclass
class LocalPrefect:
    """What `make serve` runs.

    Nothing of it comes from the environment, for a check or a drill must not reach what `make serve` uses.

    Attributes:
        root: the repository; workers load the flows from there.
        home: PREFECT_HOME: database, logs, clones of the flow runs, what they publish.
        port: of server and UI, on the loopback interface alone; the next one shows what was published.
        gpu_workers: how many workers share the GPUs out; each takes one flow run at a time. 0: they are elsewhere.
        keep_gpu_limit: whether a pool `gpu` that is there keeps its limit; otherwise it becomes `gpu_workers`.
        database: URL of a PostgreSQL database; None for SQLite in `home`.
        server: further environment variables of the server alone: its authentication, for example.
        publish: folder (relative to `root`) or URL below which runs publish; None for `home`/published.
        reports: URL below which a browser finds what is published; None for the next port, if it is a folder.
        webhook: URL that is told of failed runs and moved scores; None leaves notifications as they are.
    """

    root: Path
    home: Path
    port: int = 4200
    gpu_workers: int = 1
    keep_gpu_limit: bool = False
    database: str | None = field(default=None, repr=False)
    server: Mapping[str, str] = field(default_factory=dict, repr=False)
    publish: str | None = None
    reports: str | None = None
    webhook: SecretStr | None = None
    _children: list[tuple[str, subprocess.Popen[bytes]]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The UI."""
        return f"http://{HOST}:{self.port}"

    @property
    def published(self) -> Path | None:
        """Folder below which runs publish; None when that is not on this machine."""
        place = self._place
        return None if "://" in place else Path(place)

    @property
    def _place(self) -> str:
        """Folder or URL, as flow runs are told it."""
        place = self.publish or str(self.home / "published")
        return place if "://" in place else str((self.root / place).resolve())

    @property
    def reports_url(self) -> str | None:
        """Where a browser finds what was published; None when nothing is known of it."""
        served = None if self.published is None else f"http://{HOST}:{self.port + 1}"
        return self.reports or served

    @property
    def environment(self) -> dict[str, str]:
        """For every `prefect` command that is to talk to this server; prefect.toml in `root` has the rest."""
        base = dict(os.environ) | {PUBLISH: self._place}
        base.pop(REPORTS_URL, None)
        if self.reports_url is not None:
            base[REPORTS_URL] = self.reports_url
        return worker.worker_environment(base, self.root, self.home, f"{self.url}/api")

    @contextmanager
    def running(self) -> Iterator[LocalPrefect]:
        """Start everything, wait until it is ready, and stop everything at the end, whatever that end is.

        Raises:
            SetUpError: the port is taken, or something did not start.
        """
        for port in (self.port, self.port + 1):
            if _listens(port):
                raise SetUpError(f"port {port} is in use; choose another one, as in PREFECT_PORT=4300")
        devices = shares(visible_gpus(), self.gpu_workers)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # So a shell starts what it runs in the background. A worker would inherit it, and it needs SIGINT to
            # end itself.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.home.mkdir(parents=True, exist_ok=True)
        try:
            if self.published is not None:
                self.published.mkdir(parents=True, exist_ok=True)
                self._start("reports", _file_server(self.port + 1, self.published))
            self.start_server()
            with self._settings():
                self._set_up().apply(self.environment)
            self._start("worker-cpu", worker.command("cpu", "local-cpu", None))
            for number, share in enumerate(devices):
                name = "gpu" if self.gpu_workers == 1 else f"gpu-{number}"
                self._start(f"worker-{name}", worker.command("gpu", f"local-{name}", 1), share)
            yield self
        finally:
            self.stop()

    def _set_up(self) -> SetUp:
        keep = self.keep_gpu_limit or self.gpu_workers == 0
        return SetUp(
            self.root,
            gpu_workers=None if keep else self.gpu_workers,
            new_gpu_limit=max(1, self.gpu_workers),
            webhook=self.webhook,
        )

    def start_server(self) -> None:
        """Start the server, and wait until it answers; also after it was ended.

        Raises:
            SetUpError: it did not start in time.
        """
        settings = dict(self.server)
        if self.database is not None:
            settings[DATABASE] = self.database
        self._children = [(name, process) for name, process in self._children if name != "server"]
        self._start("server", _server(self.port), settings)
        self._wait_for_server()

    def process(self, name: str) -> psutil.Process:
        """One of `server`, `reports`, `worker-cpu`, `worker-gpu` (or `worker-gpu-0`, ...)."""
        return psutil.Process(dict(self._children)[name].pid)

    def check(self) -> None:
        """Raise when the server or a worker has ended.

        Raises:
            SetUpError: with its name, exit status and where its log is.
        """
        for name, process in self._children:
            if process.poll() is not None:
                log = self.home / f"{name}.log"
                raise SetUpError(f"{name} ended with {process.returncode}; see {log}")

    def _start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a command in a group of its own, so that Ctrl-C reaches only this process.

        Should this process be killed, the kernel ends the command; flow runs and stages end with their worker.
        """
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                tied(command),
                cwd=self.root,
                env=self.environment | dict(environment or {}),
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

    @contextmanager
    def _settings(self) -> Iterator[None]:
        with temporary_settings({PREFECT_API_URL: f"{self.url}/api"}):
            yield

    def stop(self) -> None:
        """Workers first, with their flow runs, while the server still takes the states that these report.

        Everything is stopped, whatever the server answers.

        What is going on becomes Cancelling before its process hears of it, because from there a run can only become
        Cancelled: a run that its operator stops must not count as crashed, or the server would run it once more.

        Raises:
            SetUpError: the server did not take the states.
        """
        server = [process for name, process in self._children if name == "server"]
        serves = bool(server) and all(process.poll() is None for process in server) and _listens(self.port)
        try:
            try:
                if serves:
                    self._set_unfinished(Cancelling(message="make serve was stopped."))
            finally:
                _stop_all([process for name, process in self._children if name != "server"])
            if serves:
                self._set_unfinished(Cancelled(message="make serve was stopped."))
        finally:
            _stop_all([process for _, process in self._children])
            self._children.clear()

    def _set_unfinished(self, state: State) -> None:
        """Set the state of every run that a worker has, and of those that only such a run waits for.

        Raises:
            SetUpError: the server did not take it.
        """
        # With the retries of prefect.toml a server that is not well would hold this up for minutes, run by run.
        hurry = temporary_settings(
            {PREFECT_CLIENT_MAX_RETRIES: 1, PREFECT_API_REQUEST_TIMEOUT: _HURRY_SECONDS}
        )
        try:
            with self._settings(), hurry, get_client(sync_client=True) as client:
                for run in _unfinished(client):
                    # Forced: Prefect would make a run without a process Cancelled at once, which may still start.
                    client.set_flow_run_state(run.id, state, force=True)
        except httpx.HTTPError as error:
            raise SetUpError(
                f"runs may stay {state.name} or Running, for the server did not take it ({type(error).__name__}: "
                f"{error}); see {self.home / 'server.log'}, and cancel them in the UI when it is well again"
            ) from error


def _unfinished(client: SyncPrefectClient) -> list[FlowRun]:
    """Flow runs that have not ended; without those that wait in the queue, which stay there."""
    live = runs_in(client, [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING])
    # Apart from these, for a schedule has up to a hundred runs of its own waiting.
    return [*live, *runs_in(client, [StateType.SCHEDULED], waited_for=True)]


def stop_on_signals() -> None:
    """Make SIGTERM, and SIGHUP of a terminal that closes, do what Ctrl-C does: `running` then stops everything."""
    for number in _STOP_SIGNALS:
        # nohup ignores SIGHUP, and means it.
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Begin to stop, once: a second Ctrl-C would leave processes behind."""
    for stop_signal in _STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)
    raise KeyboardInterrupt


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES lists, or else every GPU that the driver lists."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [device.strip() for device in listed.split(",") if device.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    lines = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in lines))]


def shares(devices: Sequence[str], workers: int) -> list[dict[str, str]]:
    """Share GPUs out to workers: the environment of each, which one worker, or none without GPUs, does not need.

    Raises:
        SetUpError: more workers than GPUs.
    """
    if workers == 1 or not devices:
        return [{} for _ in range(workers)]
    if workers > len(devices):
        raise SetUpError(
            f"GPU_WORKERS={workers}, but only {len(devices)} GPUs are visible: {', '.join(devices)}"
        )
    return [{"CUDA_VISIBLE_DEVICES": ",".join(devices[number::workers])} for number in range(workers)]


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
    _, alive = psutil.wait_procs(tree, timeout=stop_seconds() + STOP_MARGIN)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=5)


def free_port() -> int:
    """A port that nothing listens on, nor on the next one.

    It is below those that Linux (from 32768 on) and macOS (from 49152 on) hand out: with one of those, an outgoing
    connection of anybody may have the next port, or take it before the server starts.
    """
    while True:
        port = _LOWEST_PORT + secrets.randbelow(_PORTS)
        if not (_listens(port) or _listens(port + 1)):
            return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _server(port: int) -> list[str]:
    return [sys.executable, "-m", "infra.server", "--host", HOST, "--port", str(port)]


def _file_server(port: int, folder: Path) -> list[str]:
    return [sys.executable, "-m", "http.server", str(port), "--bind", HOST, "--directory", str(folder)]
