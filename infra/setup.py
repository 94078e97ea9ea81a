"""Set up a Prefect server: work pools, automations and the deployments of prefect.yaml.

`python -m infra.setup` uses the server of PREFECT_API_URL (default: prefect.toml). It can be run again at any time:
existing objects are kept or updated, never duplicated. The webhook URL for notifications is a secret and therefore read
from the environment: CHUNK_GRPO_NOTIFY_WEBHOOK.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import StateType
from prefect.events.clients import get_events_client
from prefect.events.schemas.events import Event, RelatedResource, Resource
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL
from prefect.utilities.asyncutils import run_coro_as_sync
from prefect.workers.process import ProcessWorker
from pydantic import SecretStr
from rich.console import Console
from websockets.exceptions import WebSocketException

from chunk_grpo.environment import NOTIFY_WEBHOOK
from infra import automations
from infra.deployments import PREFECT_FILE, deployments_file, named_pools
from infra.runs import runs_in

ROOT = Path(__file__).resolve().parents[1]
POOL_TYPES = ("process", "kubernetes", "ecs")


class SetUpError(Exception):
    """The server, a worker, a work pool or a deployment could not be set up."""


def webhook() -> SecretStr | None:
    """The webhook URL for notifications, from the environment."""
    url = os.environ.get(NOTIFY_WEBHOOK)
    return SecretStr(url) if url else None


@dataclass(frozen=True)
class Pool:
    """Wanted settings of a work pool."""

    name: str
    """Name of the pool."""
    limit: int | None = None
    """Maximum number of concurrent flow runs; None for no limit."""
    keep_limit: bool = False
    """Whether an existing pool keeps its limit."""
    type: str = "process"
    """Type of its workers, one of POOL_TYPES."""
    template: Mapping[str, Any] | None = None
    """Base job template with `variables` and `job_configuration`; None for Prefect's default, or, for an existing
    pool, its present template."""


@dataclass(frozen=True)
class SetUp:
    """Wanted set-up of a server."""

    root: Path = ROOT
    """Repository with prefect.yaml and the flows."""
    gpu_workers: int | None = None
    """Number of GPU workers, used as the limit of the pool `gpu`; None keeps the limit of an existing pool."""
    new_gpu_limit: int = 1
    """Limit of a new pool `gpu` if `gpu_workers` is None."""
    pool_type: str = "process"
    """Worker type of the pools that have a template."""
    templates: Mapping[str, Path] = field(default_factory=dict)
    """Base job template files by pool name; a pool without one has process workers."""
    more_pools: Sequence[str] = ()
    """Pools for stages, beside those that params.yaml and the presets name."""
    webhook: SecretStr | None = None
    """URL notified of failed runs and moved scores; None leaves notifications unchanged."""
    reset_schedules: bool = False
    """Whether to reset existing deployments to the schedules and default parameters of prefect.yaml, and to enable
    them."""

    def pools(self) -> list[Pool]:
        """The work pools `cpu`, `gpu`, and those on which stages run.

        SetUpError if the number of workers or a template is invalid, or a file of parameters is not YAML.
        """
        if self.gpu_workers is not None and self.gpu_workers < 1:
            raise SetUpError(f"the number of GPU workers must be at least 1, got {self.gpu_workers}")
        if self.pool_type != "process" and not self.templates:
            raise SetUpError(f"pool type {self.pool_type} needs a base job template: --template POOL=FILE")
        read = {name: read_template(path) for name, path in self.templates.items()}
        kinds: dict[str, dict[str, Any]] = {
            name: {"type": self.pool_type, "template": template} for name, template in read.items()
        }
        gpu_limit = self.new_gpu_limit if self.gpu_workers is None else self.gpu_workers
        return [
            Pool("cpu", keep_limit=True, **kinds.get("cpu", {})),
            Pool("gpu", gpu_limit, keep_limit=self.gpu_workers is None, **kinds.get("gpu", {})),
            *(
                Pool(name, keep_limit=True, **kinds.get(name, {}))
                for name in self.stage_pools()
                if name not in ("cpu", "gpu")
            ),
        ]

    def stage_pools(self) -> list[str]:
        """Work pools on which stages run."""
        try:
            named = named_pools(self.root)
        except yaml.YAMLError as error:
            raise SetUpError(f"parameters must be YAML: {error}") from error
        return sorted({"gpu", *self.templates, *self.more_pools, *named} - {"cpu"})

    def apply(self, environment: Mapping[str, str] = os.environ) -> None:
        """Set up the server of PREFECT_API_URL; `prefect deploy` gets the environment with that variable added.

        SetUpError, if the server does not answer or refuses a request, says what to do.
        """
        pools = self.pools()
        with connected() as client:
            for pool in pools:
                _set_up_pool(client, pool)
            wanted = automations.supervision()
            if self.webhook is not None:
                wanted += automations.notifications(self.webhook)
            automations.apply(client, wanted)
            unwatched = _unwatched(client)
            existing = client.read_deployments()
        _watch(unwatched)
        content = deployments_file(self.root, [] if self.reset_schedules else existing, self.stage_pools())
        deploy(self.root, content, environment)


@contextmanager
def connected() -> Iterator[SyncPrefectClient]:
    """A client of the server of PREFECT_API_URL; its errors become SetUpErrors."""
    url = PREFECT_API_URL.value()
    if not url:
        raise SetUpError(
            "PREFECT_API_URL is not set: run this command in the repository's root, where prefect.toml is"
        )
    try:
        with get_client(sync_client=True) as client:
            client.read_work_pools(limit=1)
            yield client
    except httpx.TransportError as error:
        raise SetUpError(
            f"no Prefect server at {url} ({type(error).__name__}: {error}); start one with `make serve`, or set "
            "PREFECT_API_URL to the address of yours, with /api at its end"
        ) from error
    except PrefectHTTPStatusError as error:
        raise SetUpError(_refusal(url, error)) from error
    except (json.JSONDecodeError, RuntimeError) as error:
        raise SetUpError(
            f"{url} does not answer as a Prefect server does: does it end with /api? {error}"
        ) from error


def _refusal(url: str, error: PrefectHTTPStatusError) -> str:
    status = error.response.status_code
    if status in (401, 403):
        return (
            f"{url} refuses access (status {status}): set PREFECT_API_AUTH_STRING as on the server, USER:PASSWORD; "
            "`make serve` keeps it in .prefect/auth"
        )
    if status == 404 and not url.rstrip("/").endswith("/api"):
        return f"{url} is not the address of a Prefect API: it ends with /api"
    return f"{url} refused {error.request.method} {error.request.url.path}: {error}"


def read_template(path: Path) -> Mapping[str, Any]:
    """Read a base job template file, JSON with all parts that Prefect needs."""
    try:
        template = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise SetUpError(f"base job template {path}: {error}") from error
    if not isinstance(template, dict) or not {"job_configuration", "variables"} <= template.keys():
        raise SetUpError(f"base job template {path}: must be an object with job_configuration and variables")
    return template


def _set_up_pool(client: SyncPrefectClient, pool: Pool) -> None:
    """Create a work pool, or update it; keeps the user's description, and whether the pool is paused."""
    try:
        existing = client.read_work_pool(pool.name)
    except ObjectNotFound:
        template = pool.template or ProcessWorker.get_default_base_job_template()
        client.create_work_pool(
            WorkPoolCreate(
                name=pool.name,
                type=pool.type,
                base_job_template=dict(template),
                concurrency_limit=pool.limit,
            )
        )
        return
    if existing.type != pool.type:
        raise SetUpError(
            f"work pool {pool.name} has workers of type {existing.type}, not {pool.type}, and Prefect cannot change "
            f"that: wait until the pool has no runs, run `prefect work-pool delete {pool.name}`, then run this again"
        )
    changes: dict[str, Any] = {}
    if pool.limit != existing.concurrency_limit and not pool.keep_limit:
        changes["concurrency_limit"] = pool.limit
    if pool.template is not None and dict(pool.template) != existing.base_job_template:
        changes["base_job_template"] = dict(pool.template)
    if changes:
        client.update_work_pool(pool.name, WorkPoolUpdate(**changes))


def _unwatched(client: SyncPrefectClient) -> list[Event]:
    """One event per flow run of our deployments that may have been lost while the server was down."""
    types = {pool.name: pool.type for pool in client.read_work_pools()}
    tag = RelatedResource(dict(automations.TAG_RESOURCE))
    events = []
    for kind, event in {
        StateType.RUNNING: automations.WATCH_RUNNING,
        StateType.PENDING: automations.WATCH_PENDING,
    }.items():
        for run in runs_in(client, [kind]):
            name = run.work_pool_name or ""
            pool = {
                "prefect.resource.id": f"prefect.work-pool.{name}",
                "prefect.resource.role": "work-pool",
                "prefect.work-pool.type": types.get(name, ""),
            }
            resource = Resource({"prefect.resource.id": f"prefect.flow-run.{run.id}"})
            events.append(Event(event=event, resource=resource, related=[tag, RelatedResource(pool)]))
    return events


def _watch(events: Sequence[Event]) -> None:
    """Send the events; on failure only print a warning, since pools and deployments work without them."""
    try:
        run_coro_as_sync(_emit(events))
    except (TimeoutError, OSError, WebSocketException) as error:
        text = (
            f"warning: {PREFECT_API_URL.value()} takes no WebSockets ({type(error).__name__}: {error}), which logs, "
            "events and lost runs need; does a proxy in front of it hand them on?"
        )
        Console(stderr=True, highlight=False, soft_wrap=True).print(text, style="yellow", markup=False)


async def _emit(events: Sequence[Event]) -> None:
    if not events:
        return
    async with get_events_client(reconnection_attempts=3, checkpoint_every=1) as client:
        for event in events:
            await client.emit(event)


def deploy(root: Path, content: str, environment: Mapping[str, str]) -> None:
    """Run `prefect deploy --all` with a deployment file of this text; SetUpError has the output of a failure."""
    with tempfile.TemporaryDirectory(prefix="chunk-grpo-deploy-") as folder:
        file = Path(folder) / "prefect.yaml"
        file.write_text(content, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "prefect",
            "--no-prompt",
            "deploy",
            "--all",
            "--prefect-file",
            str(file),
        ]
        result = subprocess.run(
            command,
            cwd=root,
            env={**environment, "PREFECT_API_URL": PREFECT_API_URL.value() or ""},
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode != 0:
        raise SetUpError(f"prefect deploy failed:\n{result.stdout}{result.stderr}")


def _template(text: str) -> tuple[str, Path]:
    """POOL=FILE of the command line."""
    pool, equals, file = text.partition("=")
    if not (pool and equals and file):
        raise argparse.ArgumentTypeError(f"must be POOL=FILE, got {text!r}")
    return pool, Path(file)


def main() -> int:
    """Set up the server; return exit status 1 on failure."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.setup",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--gpu-workers", type=int, help="number of GPU workers, used as the limit of pool gpu"
    )
    parser.add_argument(
        "--pool-type", choices=POOL_TYPES, default="process", help="worker type of the pools with a template"
    )
    parser.add_argument(
        "--template",
        metavar="POOL=FILE",
        type=_template,
        action="append",
        default=[],
        help="base job template of a pool (JSON); a pool without one has process workers",
    )
    parser.add_argument(
        "--pools",
        nargs="+",
        default=[],
        metavar="POOL",
        help="more pools for stages, beside those that params.yaml and the presets name",
    )
    parser.add_argument(
        "--reset-schedules",
        action="store_true",
        help=f"reset schedules, default parameters and limits to {PREFECT_FILE}, and enable all deployments",
    )
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    try:
        SetUp(
            gpu_workers=options.gpu_workers,
            pool_type=options.pool_type,
            templates=dict(options.template),
            more_pools=options.pools,
            webhook=webhook(),
            reset_schedules=options.reset_schedules,
        ).apply()
    except SetUpError as error:
        console.print(f"error: {error}", style="bold red", markup=False)
        return 1
    console.print(f"{PREFECT_API_URL.value()} has the work pools, automations and deployments.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
