"""Print how workers of prefect-kubernetes and prefect-aws read our job templates. Runs in their Python."""

import asyncio
import json
import sys
from typing import Any
from uuid import uuid4

from prefect.client.schemas.objects import FlowRun
from prefect.workers.base import BaseJobConfiguration
from prefect_aws.workers.ecs_worker import ECSWorker
from prefect_kubernetes.worker import KubernetesWorker

from tests.infra.deployment_files import POOLS, template

# As somebody sets it in the form of the work pool.
SECRET = {"name": "HF_TOKEN", "valueFrom": "arn:aws:secretsmanager:eu-central-1:1:secret:chunk-grpo/tokens/hub-1"}


def configuration(worker: Any, base: dict[str, Any], values: dict[str, Any] | None = None) -> Any:
    """The template as the worker reads it for one flow run; no server is asked, for it refers to no block."""
    kind: type[BaseJobConfiguration] = worker.job_configuration
    unknown = base["job_configuration"].keys() - kind.model_fields.keys()
    if unknown:
        raise ValueError(f"{worker.type} has no job configuration {sorted(unknown)}")
    read: Any = asyncio.run(kind.from_template_and_values(base, values or {}, client=object()))
    read.prepare_for_flow_run(FlowRun(flow_id=uuid4(), name="curious-owl"))
    return read


def main() -> None:
    kubernetes = {pool: configuration(KubernetesWorker, template("kubernetes", pool)) for pool in POOLS}
    ecs = {pool: configuration(ECSWorker, template("aws", pool), {"secrets": [SECRET]}) for pool in POOLS}
    worker = ECSWorker("gpu")
    flow_run = FlowRun(flow_id=uuid4(), name="curious-owl")
    definitions = {
        pool: worker._prepare_task_definition(each, region="eu-central-1", flow_run=flow_run)
        for pool, each in ecs.items()
    }
    jobs = {pool: each.job_manifest for pool, each in kubernetes.items()}
    json.dump({"jobs": jobs, "definitions": definitions}, sys.stdout)


if __name__ == "__main__":
    main()
