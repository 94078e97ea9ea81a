"""infra/compose.yaml: the compose specification, and ours: loopback only, no secrets, pinned, no root, health."""

import re
import subprocess
from typing import Any

import pytest
import yaml

from tests.infra.deployment_files import HOME, INFRA, PINNED, ROOT, SECRET, is_known, lint
from tests.infra.test_static_images import last

FILE = INFRA / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WORKERS = {name for name in SERVICES if name.startswith("worker")}
OWN_IMAGE = re.compile(r"^chunk-grpo-(cpu|gpu):")
REFERENCE = re.compile(r"\$\{(\w+)(:\?[^}]+|:-)?\}")
REQUIRED = re.compile(r"\$\{\w+:\?[^}]+\}")

every_service = pytest.mark.parametrize("name", SERVICES)


def test_it_fits_the_compose_specification() -> None:
    lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", FILE)


@every_service
def test_a_service_is_pinned_private_and_has_no_rights_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert PINNED.fullmatch(service["image"])
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in service.get("ports", []))
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert {"privileged", "cap_add", "devices", "pid", "ipc", "network_mode"}.isdisjoint(service)
    own = OWN_IMAGE.match(service["image"])
    user = service.get("user", last(own.group(1), "USER") if own else "root")
    assert user.split(":")[0] not in ("", "0", "root")
    # No folder of the host, and so no socket of Docker either.
    assert {volume.split(":")[0] for volume in service.get("volumes", [])} <= COMPOSE["volumes"].keys()


@every_service
def test_a_service_tells_its_health_unless_it_ends_by_itself(name: str) -> None:
    service = SERVICES[name]
    check = service.get("healthcheck", {})
    if check.get("disable"):
        assert service["restart"].startswith("on-failure")
    elif "test" not in check:  # the image's, which asks the worker's own web server
        assert OWN_IMAGE.match(service["image"])
        assert "--with-healthcheck" in service["command"]


@every_service
def test_every_variable_is_known_and_every_secret_a_reference(name: str) -> None:
    environment: dict[str, str] = SERVICES[name].get("environment", {})
    assert [variable for variable in environment if not is_known(variable)] == []
    for variable, value in environment.items():
        if not SECRET.search(variable):
            assert REFERENCE.search(value) is None, f"{variable}: only secrets come from .env"
        elif variable == "PREFECT_SERVER_DATABASE_CONNECTION_URL":
            password = value.removeprefix("postgresql+asyncpg://prefect:").split("@database:")[0]
            assert REQUIRED.fullmatch(password)
        elif variable != "CHUNK_GRPO_NOTIFY_WEBHOOK" or value != "${NOTIFY_WEBHOOK:-}":
            assert REQUIRED.fullmatch(value), f"{variable} has a value"


def test_every_reference_stands_in_the_example_which_has_no_values() -> None:
    lines = (INFRA / ".env.example").read_text("utf-8").splitlines()
    example = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert example.pop("COMPOSE_PROFILES") == "gpu"
    assert {name for name, _ in REFERENCE.findall(FILE.read_text("utf-8"))} == example.keys()
    assert not any(example.values())


def test_only_required_services_have_secrets() -> None:
    def holders(reference: str) -> set[str]:
        return {name for name, each in SERVICES.items() if reference in str(each.get("environment"))}

    assert holders("STORE_SECRET_KEY") == {"store", *WORKERS}
    assert holders("DATABASE_PASSWORD") == {"database", "server"}
    assert {name for name, each in SERVICES.items() if "database" in each["networks"]} == {"database", "server"}
    assert COMPOSE["networks"]["database"]["internal"] is True
    assert {name for name, each in SERVICES.items() if "env_file" in each} == WORKERS
    subprocess.run(["git", "check-ignore", "--quiet", "infra/worker.env"], cwd=ROOT, check=True)


def test_each_profile_has_one_worker_for_each_pool_and_one_of_them_takes_a_gpu() -> None:
    for profile, takes in (("gpu", True), ("no-gpu", False)):
        active = [SERVICES[n] for n in WORKERS if profile in SERVICES[n].get("profiles", [profile])]
        pools = {each["command"][each["command"].index("--pool") + 1]: each for each in active}
        assert (len(active), pools.keys()) == (2, {"cpu", "gpu"})
        assert ("deploy" in pools["gpu"]) == takes


def test_dvc_keeps_its_cache_in_the_volume_and_pushes_to_the_store() -> None:
    content = COMPOSE["configs"]["dvc"]["content"]
    for line in (f"dir = {HOME}/dvc/cache", f"site_cache_dir = {HOME}/dvc/site"):
        assert line in content
        assert line in last("cpu", "RUN")
    bucket = SERVICES["store"]["environment"]["S3_BUCKET"]
    assert f"url = s3://{bucket}/dvc" in content
    for name in WORKERS:
        assert SERVICES[name]["volumes"][0].endswith(f":{HOME}")
        assert SERVICES[name]["environment"]["CHUNK_GRPO_PUBLISH"] == f"s3://{bucket}/published"
