"""Job templates in the real workers of prefect-kubernetes and prefect-aws.

The packages of infra/docker/dispatcher.txt are for the dispatchers alone, so the test fetches them.
"""

import json
import os
import subprocess
import sys
from typing import Any

import kubernetes_validate
import pytest

from tests.infra.deployment_files import POOLS, ROOT
from tests.infra.test_static_aws import request_errors

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of worker_types.py, in the environment of a dispatcher."""
    packages = tmp_path_factory.mktemp("packages")
    install = ["install", "--quiet", "--no-deps", "--target", packages, "-r", "infra/docker/dispatcher.txt"]
    subprocess.run([sys.executable, "-m", "pip", *install], cwd=ROOT, check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)])}
    command = [sys.executable, "-m", "tests.infra.worker_types"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize("pool", POOLS)
def test_the_kubernetes_worker_makes_a_job_that_fits_the_schema(made: dict[str, Any], pool: str) -> None:
    job = made["jobs"][pool]
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == ["prefect", "flow-run", "execute"]


@pytest.mark.parametrize("pool", POOLS)
def test_the_ecs_worker_makes_a_task_definition_that_fits_the_request(made: dict[str, Any], pool: str) -> None:
    definition = made["definitions"][pool]
    assert request_errors(definition) == ""
    container = definition["containerDefinitions"][0]
    secrets = sorted(each["name"] for each in container["secrets"])
    assert secrets == ["HF_TOKEN", "PREFECT_API_AUTH_STRING"]
