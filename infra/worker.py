"""Start a worker of this checkout, on this or another machine: `make worker POOL=gpu`.

It talks to the server of PREFECT_API_URL, loads the flows from this checkout ($CHUNK_GRPO_REPOSITORY names another
one) and keeps clones and checkpoints in PREFECT_HOME, by default .prefect in the checkout. Ctrl-C stops it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL
from rich.console import Console

from chunk_grpo.environment import NOTIFY_WEBHOOK, REPOSITORY, WORKER_PID
from infra.automations import HEARTBEAT_SECONDS
from infra.setup import ROOT, SetUpError, connected

_OF_THE_SERVER = ("PREFECT_SERVER_", "PREFECT_API_DATABASE_")
_ALSO_OF_CLIENTS = (
    "PREFECT_SERVER_API_MAX_PARAMETER_SIZE",
    "PREFECT_SERVER_EVENTS_MAXIMUM_LABELS_PER_RESOURCE",
    "PREFECT_SERVER_EVENTS_MAXIMUM_RELATED_RESOURCES",
    "PREFECT_SERVER_EVENTS_MAXIMUM_SIZE_BYTES",
)
"""What Prefect's client looks at, too."""

_FIRST = f'{WORKER_PID}=$$ exec "$@"'
_BESIDE = f'GOMP_SPINCOUNT=${{GOMP_SPINCOUNT:-1000}} {WORKER_PID}=$$ exec nice -n 19 "$@"'
"""Stages beside a training share its cores, and take what it leaves: they have the lowest priority, and their threads
of torch soon sleep while they wait for each other, where libgomp's default has them spin (docs/performance.md)."""


def main() -> int:
    """Check what the worker needs, then become it; the exit status is 1 when something is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.worker",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pool", required=True, help="work pool: cpu or gpu")
    parser.add_argument(
        "--limit", type=int, help="flow runs at once (default: 1 on pool gpu, any number elsewhere)"
    )
    parser.add_argument("--name", help="in the Prefect UI (default: HOST-POOL-PID)")
    options = parser.parse_args()
    repository = Path(os.environ.get(REPOSITORY) or ROOT).resolve()
    home = Path(os.environ.get("PREFECT_HOME") or repository / ".prefect").resolve()
    try:
        check(repository, options.pool)
        home.mkdir(parents=True, exist_ok=True)
    except (SetUpError, OSError) as error:
        message = f"error: {error}"
        Console(stderr=True, highlight=False, soft_wrap=True).print(message, style="bold red", markup=False)
        return 1
    limit = 1 if options.limit is None and options.pool == "gpu" else options.limit
    name = options.name or f"{socket.gethostname()}-{options.pool}-{os.getpid()}"
    os.chdir(repository)  # prefect.toml
    # A shell starts what it runs in the background with SIGINT ignored; Prefect's worker needs it to end itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    line = command(options.pool, name, limit)
    return os.execve(
        line[0], line, worker_environment(os.environ, repository, home, PREFECT_API_URL.value() or "")
    )


def check(repository: Path, pool: str) -> None:
    """Whether a worker of this checkout could do its work here.

    Raises:
        SetUpError: with what is missing and what to do about it.
    """
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
    if importlib.util.find_spec("dvc") is None:
        raise SetUpError(
            f"{sys.executable} has no DVC: start the worker with `make worker`, or install the extra `pipeline`"
        )
    with connected() as client:
        try:
            found = client.read_work_pool(pool)
        except ObjectNotFound as error:
            raise SetUpError(
                f"{PREFECT_API_URL.value()} has no work pool {pool!r}: run `python -m infra.setup` for that server"
            ) from error
    if found.type != "process":
        raise SetUpError(
            f"the work pool {pool} has workers of type {found.type}, which start containers: see docs/deploy.md"
        )


def of_the_server(variable: str) -> bool:
    """Whether an environment variable is for a server alone: it may hold a password, and no flow run needs it."""
    return variable.startswith(_OF_THE_SERVER) and variable not in _ALSO_OF_CLIENTS


def worker_environment(base: Mapping[str, str], repository: Path, home: Path, api_url: str) -> dict[str, str]:
    """Everything that a worker and its flow runs need to know about this machine, and nothing of the server's own.

    Args:
        base: the environment to add to.
        repository: a clone of the repository: flows are loaded from it and workspaces cloned from it.
        home: clones, checkpoints and locks.
        api_url: the Prefect server.
    """
    path = [str(Path(sys.executable).parent), base.get("PATH", os.defpath)]
    return {
        # Prefect does not let the heartbeat out of prefect.toml into a flow run of another folder.
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
        **{name: base[name] for name in base if not of_the_server(name) and name != NOTIFY_WEBHOOK},
        "PATH": os.pathsep.join(path),
        "PREFECT_API_URL": api_url,
        "PREFECT_HOME": str(home),
        REPOSITORY: str(repository),
        "DO_NOT_TRACK": "1",
    }


def command(pool: str, name: str, limit: int | None) -> list[str]:
    """A command that becomes the worker, with its process id in WORKER_PID; stages of pool gpu come first."""
    limits = [] if limit is None else ["--limit", str(limit)]
    worker = [
        sys.executable,
        "-m",
        "prefect",
        "--no-prompt",
        "worker",
        "start",
        "--pool",
        pool,
        "--name",
        name,
    ]
    return ["/bin/sh", "-c", _FIRST if pool == "gpu" else _BESIDE, "worker", *worker, *limits]


if __name__ == "__main__":
    sys.exit(main())
