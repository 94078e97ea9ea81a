"""Start a worker of this checkout, on this or another machine: `make worker POOL=gpu`.

It connects to the server of PREFECT_API_URL, loads the flows from this checkout (or from $CHUNK_GRPO_REPOSITORY) and
keeps clones and checkpoints in PREFECT_HOME (default: .prefect in the checkout). Ctrl-C stops it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL

from chunk_grpo.__main__ import call
from chunk_grpo.environment import NOTIFY_WEBHOOK, REPOSITORY, WORKER_PID
from chunk_grpo.errors import DataError
from chunk_grpo.orchestration.dvc_state import keep_own_state
from infra.command_line import command_parser
from infra.setup import ROOT, SetUpError, connected

_OF_THE_SERVER = ("PREFECT_SERVER_", "PREFECT_API_DATABASE_")
_ALSO_OF_CLIENTS = (
    "PREFECT_SERVER_API_MAX_PARAMETER_SIZE",
    "PREFECT_SERVER_EVENTS_MAXIMUM_LABELS_PER_RESOURCE",
    "PREFECT_SERVER_EVENTS_MAXIMUM_RELATED_RESOURCES",
    "PREFECT_SERVER_EVENTS_MAXIMUM_SIZE_BYTES",
)
"""Server variables that Prefect's client reads too."""


def main(argv: Sequence[str] | None = None) -> int:
    """Check the worker's requirements, then exec the worker."""
    options = parser().parse_args(argv)
    repository = Path(os.environ.get(REPOSITORY) or ROOT).resolve()
    home = Path(os.environ.get("PREFECT_HOME") or repository / ".prefect").resolve()
    check(repository, options.pool)
    own_folder(home)
    keep_own_state(repository)
    limit = 1 if options.limit is None and options.pool != "cpu" else options.limit
    name = options.name or f"{socket.gethostname()}-{options.pool}-{os.getpid()}"
    os.chdir(repository)  # prefect.toml
    # Shells start background commands with SIGINT ignored; Prefect's worker needs SIGINT to end itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    line = command(options.pool, name, limit)
    return os.execve(line[0], line, worker_environment(os.environ, repository, home, PREFECT_API_URL.value() or ""))


def parser() -> argparse.ArgumentParser:
    own = command_parser("worker", __doc__)
    own.add_argument("--pool", required=True, help="work pool, such as cpu or gpu")
    own.add_argument(
        "--limit", type=int, help="maximum number of concurrent flow runs (default: no limit on pool cpu, otherwise 1)"
    )
    own.add_argument("--name", help="name of the worker in the Prefect UI (default: HOST-POOL-PID)")
    return own


def check(repository: Path, pool: str) -> None:
    """Check that a worker of this checkout can run here; SetUpError says what to do."""
    for file, what in {
        "dvc.yaml": "the pipeline",
        "flows": "the flows",
        ".git": "a git checkout",
        ".dvc": "DVC",
    }.items():
        if not (repository / file).exists():
            raise SetUpError(
                f"{repository} has no {file} ({what}): set {REPOSITORY} to a clone of the repository on this machine"
            )
    if shutil.which("git") is None:
        raise SetUpError("git is not installed here; every flow run needs it to clone the repository")
    with connected() as client:
        try:
            found = client.read_work_pool(pool)
        except ObjectNotFound as error:
            raise SetUpError(
                f"{PREFECT_API_URL.value()} has no work pool {pool!r}: run `chunk-grpo setup` for that server"
            ) from error
    if found.type != "process":
        raise SetUpError(
            f"the work pool {pool} has workers of type {found.type}, which start containers: see docs/deploy.md"
        )


def own_folder(home: Path) -> None:
    """Make PREFECT_HOME, for this user alone: logs, clones and the string of the server are in it.

    DataError if it cannot be made, or belongs to somebody else.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o700)
    except OSError as error:
        raise DataError(f"PREFECT_HOME: must be a folder of yours: {error}") from error


def of_the_server(variable: str) -> bool:
    """Whether an environment variable is for the server only; such variables may hold passwords."""
    return variable.startswith(_OF_THE_SERVER) and variable not in _ALSO_OF_CLIENTS


def worker_environment(base: Mapping[str, str], repository: Path, home: Path, api_url: str) -> dict[str, str]:
    """Environment of a worker and its flow runs: `base` without server-only variables.

    Flows are loaded and workspaces cloned from `repository`; `home` is for clones, checkpoints and locks.
    """
    path = [str(Path(sys.executable).parent), base.get("PATH", os.defpath)]
    return {
        # Prefect does not pass the heartbeat setting of prefect.toml on to flow runs in another folder.
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        **{name: base[name] for name in base if not of_the_server(name) and name != NOTIFY_WEBHOOK},
        "PATH": os.pathsep.join(path),
        "PREFECT_API_URL": api_url,
        "PREFECT_HOME": str(home),
        REPOSITORY: str(repository),
        "DO_NOT_TRACK": "1",
    }


def command(pool: str, name: str, limit: int | None) -> list[str]:
    """Command that execs the worker with its process id in WORKER_PID."""
    limits = [] if limit is None else ["--limit", str(limit)]
    prefect = [sys.executable, "-m", "prefect", "--no-prompt", "worker", "start"]
    worker = [*prefect, "--pool", pool, "--name", name]
    return ["/bin/sh", "-c", f'{WORKER_PID}=$$ exec "$@"', "worker", *worker, *limits]


if __name__ == "__main__":
    sys.exit(call("worker", sys.argv[1:]))
