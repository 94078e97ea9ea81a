"""Set up a Prefect server: work pools, automations and the deployments of prefect.yaml.

`chunk-grpo setup` uses the server of PREFECT_API_URL (default: prefect.toml). It can be run again at any time:
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
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL
from prefect.types import SecretDict
from prefect.workers.process import ProcessWorker
from pydantic import SecretStr

from chunk_grpo.__main__ import call
from chunk_grpo.environment import NOTIFY_WEBHOOK
from chunk_grpo.errors import ConfigError, TransientError
from infra.command_line import command_parser
from infra.deployments import PREFECT_FILE, deployments_file, named_pools

ROOT = Path(__file__).resolve().parents[1]
AUTOMATIONS, NOTIFICATIONS = (Path(__file__).with_name(f"{name}.yaml") for name in ("automations", "notifications"))
WEBHOOK_BLOCK = "chunk-grpo-notify"


class SetUpError(ConfigError):
    """The server, a worker, a work pool or a deployment could not be set up."""


class ProcessEndedError(SetUpError):
    """A process of `chunk-grpo serve` has ended; the same command starts it again."""

    exit_code = TransientError.exit_code


def webhook() -> SecretStr | None:
    """The webhook URL for notifications, from the environment."""
    url = os.environ.get(NOTIFY_WEBHOOK)
    return SecretStr(url) if url else None


@dataclass(frozen=True)
class SetUp:
    """Wanted set-up of a server."""

    root: Path = ROOT
    """Repository with prefect.yaml and the flows."""
    gpu_workers: int | None = None
    """Number of GPU workers, used as the limit of the pool `gpu`; None keeps the limit of an existing pool."""
    pool_type: str = "process"
    """Worker type of the pools that have a template: process, kubernetes or ecs."""
    templates: Mapping[str, Path] = field(default_factory=dict)
    """Base job template files by pool name; a pool without one has process workers."""
    more_pools: Sequence[str] = ()
    """Pools for stages, beside those that params.yaml and the presets name."""
    webhook: SecretStr | None = None
    """URL notified of failed runs and moved scores; None leaves notifications unchanged."""
    reset_schedules: bool = False
    """Whether to reset existing deployments to the schedules and default parameters of prefect.yaml, and to enable
    them."""

    def pools(self) -> list[WorkPoolCreate]:
        """The work pools `cpu`, `gpu`, and those on which stages run; only the pool `gpu` has a limit.

        SetUpError if the number of workers or a template is invalid, or a file of parameters is not YAML.
        """
        if self.gpu_workers is not None and self.gpu_workers < 1:
            raise SetUpError(f"the number of GPU workers must be at least 1, got {self.gpu_workers}")
        if self.pool_type != "process" and not self.templates:
            raise SetUpError(f"pool type {self.pool_type} needs a base job template: --template POOL=FILE")
        return [
            WorkPoolCreate(
                name=name,
                type=self.pool_type if name in self.templates else "process",
                base_job_template=read_template(self.templates[name]) if name in self.templates else {},
                concurrency_limit=(self.gpu_workers or 1) if name == "gpu" else None,
            )
            for name in dict.fromkeys(["cpu", "gpu", *self.stage_pools()])
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
                _set_up_pool(client, pool, keep_limit=pool.name != "gpu" or self.gpu_workers is None)
            wanted = automations(AUTOMATIONS)
            if self.webhook is not None:
                block = Webhook(url=self.webhook, headers=SecretDict({"Content-Type": "application/json"}))
                wanted += automations(NOTIFICATIONS, BLOCK=str(block.save(WEBHOOK_BLOCK, overwrite=True)))
            set_up_automations(client, wanted)
            existing = client.read_deployments()
        content = deployments_file(self.root, [] if self.reset_schedules else existing, self.stage_pools())
        deploy(self.root, content, environment)


def automations(file: Path, **values: str) -> list[AutomationCore]:
    """The automations of a file, with values in the place of words."""
    text = file.read_text(encoding="utf-8")
    for word, value in values.items():
        text = text.replace(f": {word}\n", f": {value}\n")
    return [AutomationCore.model_validate(each) for each in yaml.safe_load(text)["automations"]]


def set_up_automations(client: SyncPrefectClient, wanted: Sequence[AutomationCore]) -> None:
    """Create missing automations and mend changed ones, by name; keeps whether one is enabled.

    Unchanged automations are not written: writing one drops its running timers.
    """
    for automation in wanted:
        existing = client.read_automations_by_name(automation.name)
        if not existing:
            client.create_automation(automation)
            continue
        new = automation.model_copy(update={"enabled": existing[0].enabled})
        if AutomationCore.model_validate(existing[0].model_dump()) != new:
            # The server rejects an owner in an update.
            changed = AutomationCore.model_validate(new.model_dump(exclude={"owner_resource"}))
            client.update_automation(existing[0].id, changed)


@contextmanager
def connected() -> Iterator[SyncPrefectClient]:
    """A client of the server of PREFECT_API_URL; its errors become SetUpErrors."""
    url = PREFECT_API_URL.value()
    if not url:
        raise SetUpError("PREFECT_API_URL is not set: run this command in the repository's root, where prefect.toml is")
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
        raise SetUpError(f"{url} does not answer as a Prefect server does: does it end with /api? {error}") from error


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


def read_template(path: Path) -> dict[str, Any]:
    """Read a base job template file, JSON with all parts that Prefect needs."""
    try:
        template = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise SetUpError(f"base job template {path}: {error}") from error
    if not isinstance(template, dict) or not {"job_configuration", "variables"} <= template.keys():
        raise SetUpError(f"base job template {path}: must be an object with job_configuration and variables")
    return template


def _set_up_pool(client: SyncPrefectClient, pool: WorkPoolCreate, *, keep_limit: bool) -> None:
    """Create a work pool, or update it; keeps the user's description, and whether the pool is paused."""
    template = pool.base_job_template
    try:
        existing = client.read_work_pool(pool.name)
    except ObjectNotFound:
        default = template or ProcessWorker.get_default_base_job_template()
        client.create_work_pool(pool.model_copy(update={"base_job_template": default}))
        return
    if existing.type != pool.type:
        raise SetUpError(
            f"work pool {pool.name} has workers of type {existing.type}, not {pool.type}, and Prefect cannot change "
            f"that: wait until the pool has no runs, run `prefect work-pool delete {pool.name}`, then run this again"
        )
    changes: dict[str, Any] = {}
    if pool.concurrency_limit != existing.concurrency_limit and not keep_limit:
        changes["concurrency_limit"] = pool.concurrency_limit
    if template and template != existing.base_job_template:
        changes["base_job_template"] = template
    if changes:
        client.update_work_pool(pool.name, WorkPoolUpdate(**changes))


def deploy(root: Path, content: str, environment: Mapping[str, str]) -> None:
    """Run `prefect deploy --all` with a deployment file of this text; SetUpError has the output of a failure."""
    with tempfile.TemporaryDirectory(prefix="chunk-grpo-deploy-") as folder:
        file = Path(folder) / "prefect.yaml"
        file.write_text(content, encoding="utf-8")
        prefect = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
        command = [*prefect, "--prefect-file", str(file)]
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


def main(argv: Sequence[str] | None = None) -> int:
    """Set up the server; return 0."""
    options = vars(parser().parse_args(argv))
    SetUp(templates=dict(options.pop("template")), webhook=webhook(), **options).apply()
    sys.stdout.write(f"{PREFECT_API_URL.value()} has the work pools, automations and deployments.\n")
    return 0


def parser() -> argparse.ArgumentParser:
    own = command_parser("setup", __doc__)
    text = "number of GPU workers, used as the limit of pool gpu"
    own.add_argument("--gpu-workers", type=int, help=text)
    text = "worker type of the pools with a template"
    own.add_argument("--pool-type", choices=["process", "kubernetes", "ecs"], default="process", help=text)
    text = "base job template of a pool (JSON); a pool without one has process workers"
    own.add_argument("--template", metavar="POOL=FILE", type=_template, action="append", default=[], help=text)
    text = "more pools for stages, beside those that params.yaml and the presets name"
    own.add_argument("--pools", dest="more_pools", metavar="POOL", nargs="+", default=[], help=text)
    text = f"reset schedules, default parameters and limits to {PREFECT_FILE}, and enable all deployments"
    own.add_argument("--reset-schedules", action="store_true", help=text)
    return own


if __name__ == "__main__":
    sys.exit(call("setup", sys.argv[1:]))
