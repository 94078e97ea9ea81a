"""A Prefect server with work pools, deployments and workers: started together, stopped together."""

from __future__ import annotations

import os
import secrets
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
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentTaskRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    temporary_settings,
)
from prefect.states import Cancelled, Cancelling
from pydantic import SecretStr

from chunk_grpo.environment import PUBLISH, REPORTS_URL
from chunk_grpo.gpus import visible_gpus
from chunk_grpo.guard import exec_with_parent_death_signal
from chunk_grpo.orchestration.clones import locked
from chunk_grpo.orchestration.dvc_state import keep_own_state
from chunk_grpo.orchestration.served import OUR_STRING, PORT
from chunk_grpo.stopping import STOP_SIGNALS, stop_seconds
from infra import worker
from infra.setup import ProcessEndedError, SetUp, SetUpError

HOST = "127.0.0.1"
DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
"""PostgreSQL in place of SQLite in PREFECT_HOME. Contains the password."""
SERVER_STRING = "PREFECT_SERVER_API_AUTH_STRING"

_START_SECONDS = 120.0
STOP_MARGIN = 20.0  # added to a stage's stop timeout, for its flow run and the worker
_PAGE = 200  # flow runs that the server sends at once
_HURRY_SECONDS = 20.0  # request timeout while stopping
_LOWEST_PORT, _PORTS = 20_000, 12_000  # for drills and checks


@dataclass
class LocalPrefect:
    """Server, workers and deployments of `make serve`.

    It reads no settings from the environment, so that checks and drills cannot touch the server of `make serve`.
    """

    root: Path
    """Repository from which workers load the flows."""
    home: Path
    """PREFECT_HOME: database, logs, clones of flow runs, published results. Nobody else can enter it."""
    port: int = 4200
    """Port of server and UI, on the loopback interface only; `port + 1` serves published results."""
    gpu_workers: int | None = None
    """Number of workers that share the GPUs, each with one flow run at a time, and limit of the pool `gpu`. 0: GPU
    workers are elsewhere. None: one, and an existing pool keeps its limit."""
    auth: str | None = field(default=None, repr=False)
    """String that the server asks for, USER:PASSWORD; workers and flow runs get it. None: it asks nobody."""
    server: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further environment variables for the server only, such as DATABASE."""
    publish: str | None = None
    """Folder (relative to `root`) or URL below which runs publish; None for `home`/published."""
    reports: str | None = None
    """URL at which browsers find published results; None for `port + 1` if results are in a local folder."""
    webhook: SecretStr | None = None
    """URL notified of failed runs and moved scores; None leaves notifications unchanged."""
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False, repr=False)

    @property
    def url(self) -> str:
        """URL of the UI."""
        return f"http://{HOST}:{self.port}"

    @property
    def published(self) -> Path | None:
        """Folder below which runs publish; None if it is not on this machine."""
        place = self._place
        return None if "://" in place else Path(place)

    @property
    def _place(self) -> str:
        """Folder or URL below which runs publish, as passed to flow runs."""
        place = self.publish or str(self.home / "published")
        return place if "://" in place else str((self.root / place).resolve())

    @property
    def reports_url(self) -> str | None:
        """URL at which browsers find published results; None if unknown."""
        served = None if self.published is None else f"http://{HOST}:{self.port + 1}"
        return self.reports or served

    @property
    def environment(self) -> dict[str, str]:
        """Environment of `prefect` commands that use this server; prefect.toml in `root` has the other settings."""
        base = dict(os.environ) | {PUBLISH: self._place}
        base.pop(REPORTS_URL, None)
        if self.reports_url is not None:
            base[REPORTS_URL] = self.reports_url
        if self.auth is not None:
            base[OUR_STRING] = self.auth
        return worker.worker_environment(base, self.root, self.home, f"{self.url}/api")

    @contextmanager
    def running(self) -> Iterator[LocalPrefect]:
        """Start everything and wait until it is ready; stop everything when the context ends for any reason.

        SetUpError if it runs in this folder already, a port is in use, or a process did not start.
        """
        worker.own_folder(self.home)
        keep_own_state(self.root)
        with locked(self.home / PORT, wait=False) as is_free:
            if not is_free:
                other = (self.home / PORT).read_text(encoding="utf-8").strip()
                raise SetUpError(f"already runs here, on port {other}; use it, or stop it with Ctrl-C")
            with self._running():
                yield self

    @contextmanager
    def _running(self) -> Iterator[None]:
        for port, needed in ((self.port, ""), (self.port + 1, ", and the reports of this server need it")):
            if _listens(port):
                raise SetUpError(f"{_holder(port)}{needed}; choose another one for the server, as in PREFECT_PORT=4300")
        workers = 1 if self.gpu_workers is None else self.gpu_workers
        devices = shares(visible_gpus(), workers)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # Shells start background commands with SIGINT ignored. Workers would inherit this, but a worker needs
            # SIGINT to end itself.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        (self.home / PORT).write_text(f"{self.port}\n", encoding="utf-8")
        try:
            if self.published is not None:
                self.published.mkdir(parents=True, exist_ok=True)
                command = [sys.executable, "-m", "infra.reports", str(self.port + 1), str(self.published)]
                self._start("reports", command)
            self.start_server()
            with self._settings():
                SetUp(self.root, gpu_workers=self.gpu_workers or None, webhook=self.webhook).apply(self.environment)
            self._start("worker-cpu", worker.command("cpu", "local-cpu", None))
            for number, share in enumerate(devices):
                name = "gpu" if workers == 1 else f"gpu-{number}"
                self._start(f"worker-{name}", worker.command("gpu", f"local-{name}", 1), share)
            yield
        except SetUpError:
            self.stop(cancel=False)
            raise
        finally:
            self.stop()
            (self.home / PORT).write_text("", encoding="utf-8")

    def start_server(self) -> None:
        """Start or restart the server, and wait until it answers; SetUpError if it does not in time."""
        settings = dict(self.server)
        if self.auth is not None:
            settings[SERVER_STRING] = self.auth
        command = [sys.executable, "-m", "infra.server", "--host", HOST, "--port", str(self.port)]
        self._start("server", command, settings)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            with suppress(httpx.TransportError):  # not listening yet
                if httpx.get(f"{self.url}/api/health").is_success:
                    return
            time.sleep(0.5)
        raise SetUpError(f"no healthy server within {_START_SECONDS:.0f} s; see {self.home / 'server.log'}")

    def process(self, name: str) -> psutil.Process:
        """The process named `server`, `reports`, `worker-cpu` or `worker-gpu` (`worker-gpu-0`, ... if several)."""
        return psutil.Process(self._processes[name].pid)

    def check(self) -> None:
        """Check that all processes run; ProcessEndedError names one that has ended, its exit status and its log."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise ProcessEndedError(
                    f"{name} ended with {process.returncode}; see {self.home / name}.log. The others were stopped too; "
                    "when they are started again, runs that were active are run once more"
                )

    def _start(self, name: str, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """Start a process with a log file.

        It has its own session, so that Ctrl-C reaches only this process. If this process is killed, the kernel ends it;
        flow runs and stages end with their worker.
        """
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                exec_with_parent_death_signal(command),
                cwd=self.root,
                env=self.environment | dict(variables or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @contextmanager
    def _settings(self) -> Iterator[None]:
        with temporary_settings({PREFECT_API_URL: f"{self.url}/api", PREFECT_API_AUTH_STRING: self.auth}):
            yield

    def stop(self, *, cancel: bool = True) -> None:
        """Stop the workers and their flow runs, then the server, which until then accepts the runs' final states.

        All processes are stopped even if the server refuses the states, which is a SetUpError.

        Unfinished runs are set to Cancelling before their processes get a signal, because a Cancelling run can only
        become Cancelled, which is final. A run stopped here must not count as crashed, or the server would run it
        again. With `cancel` off, their states stay.
        """
        server = self._processes.get("server")
        serves = cancel and server is not None and server.poll() is None and _listens(self.port)
        try:
            try:
                if serves:
                    self._set_unfinished(Cancelling(message="make serve was stopped."))
            finally:
                _stop_all([process for process in self._processes.values() if process is not server])
            if serves:
                self._set_unfinished(Cancelled(message="make serve was stopped."))
        finally:
            _stop_all([*self._processes.values()])
            self._processes.clear()

    def _set_unfinished(self, state: State) -> None:
        """Set the state of every run that a worker has taken, and of the scheduled runs that such a run waits for."""
        # With the retries of prefect.toml an unhealthy server would delay this by minutes per run.
        hurry = temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1, PREFECT_API_REQUEST_TIMEOUT: _HURRY_SECONDS})
        try:
            with self._settings(), hurry, get_client(sync_client=True) as client:
                for run in _unfinished(client):
                    # Forced: Prefect would set a run without a process to Cancelled at once, and it may still start.
                    client.set_flow_run_state(run.id, state, force=True)
        except httpx.HTTPError as error:
            raise SetUpError(
                f"the server did not accept state {state.name} ({type(error).__name__}: {error}): runs may stay "
                f"Cancelling or Running; see {self.home / 'server.log'}, and cancel them in the UI after a restart"
            ) from error


def _unfinished(client: SyncPrefectClient) -> list[FlowRun]:
    """Unfinished flow runs, except queued ones, which stay in the queue."""
    live = _runs_in(client, [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING])
    # Only runs that another run waits for: a schedule has up to a hundred scheduled runs.
    return [*live, *_runs_in(client, [StateType.SCHEDULED], waited_for=True)]


def _runs_in(client: SyncPrefectClient, states: Sequence[StateType], *, waited_for: bool = False) -> list[FlowRun]:
    """All flow runs of our deployments in the given states.

    `waited_for`: only those that another flow run started and waits for.
    """
    wanted = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states))),
        tags=FlowRunFilterTags(all_=["chunk-grpo"]),
    )
    if waited_for:
        wanted.parent_task_run_id = FlowRunFilterParentTaskRunId(is_null_=False)
    found, offset = dict[object, FlowRun](), 0  # a run that changes during paging may be on two pages
    while page := client.read_flow_runs(flow_run_filter=wanted, limit=_PAGE, offset=offset):
        found.update({run.id: run for run in page})
        offset += len(page)
    return list(found.values())


def stop_on_signals() -> None:
    """Make SIGTERM and SIGHUP (terminal closed) act like Ctrl-C, so that `running` stops everything."""
    for number in STOP_SIGNALS:
        # Keep SIGHUP ignored under nohup.
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt once, and ignore further signals: a second Ctrl-C would leave processes behind."""
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)
    raise KeyboardInterrupt


def shares(devices: Sequence[str], workers: int) -> list[dict[str, str]]:
    """Environment variables that divide the GPUs among workers; empty for a single worker or without GPUs.

    More workers than GPUs are refused.
    """
    if workers == 1 or not devices:
        return [{} for _ in range(workers)]
    if workers > len(devices):
        raise SetUpError(f"GPU_WORKERS={workers}, but only {len(devices)} GPUs are visible: {', '.join(devices)}")
    return [{"CUDA_VISIBLE_DEVICES": ",".join(devices[number::workers])} for number in range(workers)]


def _stop_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    stop_trees([psutil.Process(process.pid) for process in processes if process.poll() is None])
    for process in processes:
        process.wait()


def stop_trees(roots: Sequence[psutil.Process]) -> None:
    """End processes and all their descendants: SIGTERM first, SIGKILL after a timeout.

    Flow runs and stages have their own sessions, which a signal to their worker's group does not reach.
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
    """A random port that is free together with the next one.

    It is below the ephemeral ports of Linux (from 32768) and macOS (from 49152), which any outgoing connection may
    take before the server starts.
    """
    while True:
        port = _LOWEST_PORT + secrets.randbelow(_PORTS)
        if not (_listens(port) or _listens(port + 1)):
            return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _holder(port: int) -> str:
    """What holds a port: a Prefect server answers to a question of its health."""
    with suppress(httpx.HTTPError):
        if httpx.get(f"http://{HOST}:{port}/api/health", timeout=5).text == "true":
            return f"port {port} is in use by a Prefect server, perhaps `make serve` of another folder or user"
    return f"port {port} is in use by another program"
