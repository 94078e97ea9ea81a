"""Deployments of prefect.yaml, for workers that are started in a clone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from prefect.client.schemas.responses import DeploymentResponse

PREFECT_FILE = Path("prefect.yaml")
FROM_THE_CLONE: list[dict[str, dict[str, Any]]] = [
    {
        "prefect.deployments.steps.run_shell_script": {
            "id": "repository",
            "script": "sh -c 'printf %s "
            '"${CHUNK_GRPO_REPOSITORY:?not set for this worker; start it with chunk-grpo worker}"\'',
            "stream_output": False,
        }
    },
    {"prefect.deployments.steps.set_working_directory": {"directory": "{{ repository.stdout }}"}},
]
"""Pull steps of workers that are started in a clone: they load the flows from their own $CHUNK_GRPO_REPOSITORY.

A command reads it, because Prefect would replace `{{ $VARIABLE }}` on the machine of `prefect deploy`. Without the
variable the command and the run fail.
"""


def named_pools(root: Path) -> set[str]:
    """Work pools that `pools` of params.yaml and of the presets name; a file that is no YAML is a yaml.YAMLError."""
    found: set[str] = set()
    for path in (root / "params.yaml", *sorted((root / "conf" / "preset").glob("*.yaml"))):
        if not path.exists():
            continue
        with path.open(encoding="utf-8") as stream:  # so that an error names the file
            content = yaml.safe_load(stream)
        pools = content.get("pools") if isinstance(content, dict) else None
        found |= {name for name in pools.values() if isinstance(name, str)} if isinstance(pools, dict) else set()
    return found


def deployments_file(root: Path, existing: Sequence[DeploymentResponse], stage_pools: Sequence[str] = ()) -> str:
    """The text of prefect.yaml for workers in a clone, with the values that users may have changed in the Prefect UI.

    Otherwise `prefect deploy` would enable paused deployments and overwrite their schedules, default parameters and
    concurrency limits. The deployments of stages on the pool `gpu` are repeated for each other pool of stages.
    """
    content = yaml.safe_load((root / PREFECT_FILE).read_text(encoding="utf-8"))
    content["pull"] = FROM_THE_CLONE
    del content["build"]
    of_stages = [each for each in content["deployments"] if each["work_pool"]["name"] == "gpu"]
    content["deployments"] += [
        {**each, "name": each["name"].replace("-gpu", f"-{pool}"), "work_pool": {"name": pool}}
        for pool in stage_pools
        if pool != "gpu"
        for each in of_stages
    ]
    known = {(deployment.name, deployment.entrypoint): deployment for deployment in existing}
    for wanted in content["deployments"]:
        # The workers' environment has them, or the pool's template.
        wanted["work_pool"].pop("job_variables", None)
        if found := known.get((wanted["name"], wanted["entrypoint"])):
            wanted["paused"] = found.paused
            wanted["parameters"] = found.parameters
            wanted.pop("schedules", None)  # also if the user deleted the schedule
            wanted["concurrency_limit"] = _limit(found)
    return str(yaml.safe_dump(content, sort_keys=False))


def _limit(deployment: DeploymentResponse) -> dict[str, Any] | None:
    """Concurrency limit of a deployment, as in prefect.yaml; None if it has none."""
    if deployment.global_concurrency_limit is None:
        return None
    options = deployment.concurrency_options
    chosen = {} if options is None else options.model_dump(mode="json", exclude_none=True)
    return {"limit": deployment.global_concurrency_limit.limit, **chosen}
