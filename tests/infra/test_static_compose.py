"""infra/compose.yaml: the compose specification, and ours: loopback only, no secrets, pinned, no root, health."""

from __future__ import annotations

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
OWN_IMAGE = re.compile(r"^chunk-grpo-(cpu|gpu):")
REFERENCE = re.compile(r"\$\{(\w+)(:\?[^}]+|:-)?\}")
REQUIRED = re.compile(r"\$\{\w+:\?[^}]+\}")
EXAMPLE = dict(
    line.split("=", 1)
    for line in (INFRA / ".env.example").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
)

every_service = pytest.mark.parametrize("name", SERVICES)


def test_it_fits_the_compose_specification() -> None:
    lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", FILE)


def test_the_services_are_these() -> None:
    workers = {"worker-cpu", "worker-gpu", "worker-gpu-without-gpu"}
    assert set(SERVICES) == {"database", "store", "server", "setup", *workers}


@every_service
def test_a_port_is_published_on_the_loopback_interface_alone(name: str) -> None:
    service = SERVICES[name]
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in service.get("ports", []))
    assert "network_mode" not in service


@every_service
def test_an_image_is_pinned(name: str) -> None:
    assert PINNED.fullmatch(SERVICES[name]["image"])


@every_service
def test_a_service_has_no_rights_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"privileged", "cap_add", "devices", "pid", "ipc"}.isdisjoint(service)
    own = OWN_IMAGE.match(service["image"])
    user = service.get("user", last(own.group(1), "USER") if own else "root")
    assert user.split(":")[0] not in ("", "0", "root")


@every_service
def test_a_volume_is_one_of_composes_own(name: str) -> None:
    """No folder of the host, and so no socket of Docker either."""
    sources = [volume.split(":")[0] for volume in SERVICES[name].get("volumes", [])]
    assert set(sources) <= COMPOSE["volumes"].keys()
    if name.startswith("worker"):
        assert SERVICES[name]["volumes"][0].endswith(f":{HOME}")


@every_service
def test_a_service_tells_its_health_unless_it_ends_by_itself(name: str) -> None:
    service = SERVICES[name]
    check = service.get("healthcheck", {})
    if check.get("disable"):
        assert service["restart"].startswith("on-failure")
    elif "test" in check:
        assert check["test"][0] == "CMD"
    else:  # the image's, which asks the worker's own web server
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
        elif variable == "CHUNK_GRPO_NOTIFY_WEBHOOK":
            assert value == "${NOTIFY_WEBHOOK:-}"
        else:
            assert REQUIRED.fullmatch(value), f"{variable} has a value"


def test_every_reference_stands_in_the_example_which_has_no_values() -> None:
    used = {name for name, _ in REFERENCE.findall(FILE.read_text("utf-8"))}
    assert used == EXAMPLE.keys() - {"COMPOSE_PROFILES"}
    assert {name for name, value in EXAMPLE.items() if value} == {"COMPOSE_PROFILES"}
    assert not any(re.match(r"AWS_|PREFECT_|POSTGRES_|PG", name) for name in EXAMPLE)


def test_only_who_needs_them_has_the_keys_of_the_store_and_the_database() -> None:
    def holders(reference: str) -> set[str]:
        return {name for name, each in SERVICES.items() if reference in str(each.get("environment"))}

    workers = {name for name in SERVICES if name.startswith("worker")}
    assert holders("STORE_SECRET_KEY") == {"store", *workers}
    assert holders("DATABASE_PASSWORD") == {"database", "server"}
    in_network = {name for name, service in SERVICES.items() if "database" in service["networks"]}
    assert in_network == {"database", "server"}
    assert COMPOSE["networks"]["database"]["internal"] is True


@every_service
def test_workers_alone_get_tokens_from_a_file_that_git_ignores(name: str) -> None:
    expected = [{"path": "worker.env", "required": False}] if name.startswith("worker") else []
    assert SERVICES[name].get("env_file", []) == expected
    ignored = subprocess.run(["git", "check-ignore", "--quiet", "infra/worker.env"], cwd=ROOT, check=False)
    assert ignored.returncode == 0


def test_everything_that_is_named_is_declared_and_used() -> None:
    networks = {network for service in SERVICES.values() for network in service["networks"]}
    volumes = {v.split(":")[0] for service in SERVICES.values() for v in service.get("volumes", [])}
    configs = {c["source"] for service in SERVICES.values() for c in service.get("configs", [])}
    assert networks == COMPOSE["networks"].keys()
    assert volumes == COMPOSE["volumes"].keys()
    assert configs == COMPOSE["configs"].keys()


def test_what_waits_for_what() -> None:
    waits = {
        (name, other): each["condition"]
        for name, service in SERVICES.items()
        for other, each in service.get("depends_on", {}).items()
    }
    workers = [name for name in SERVICES if name.startswith("worker")]
    assert waits == {
        ("server", "database"): "service_healthy",
        ("setup", "server"): "service_healthy",
        **{(worker, "setup"): "service_completed_successfully" for worker in workers},
        **{(worker, "store"): "service_healthy" for worker in workers},
    }


def test_the_database_is_healthy_only_after_its_first_start() -> None:
    """Which listens to its socket alone, and ends in a restart."""
    assert "--host=127.0.0.1" in SERVICES["database"]["healthcheck"]["test"]


def test_each_profile_has_one_gpu_worker_and_only_one_of_them_takes_a_gpu() -> None:
    gpu = [name for name, service in SERVICES.items() if "gpu" in service.get("command", [])]
    assert [SERVICES[name]["profiles"] for name in gpu] == [["gpu"], ["no-gpu"]]
    assert EXAMPLE["COMPOSE_PROFILES"] == "gpu"
    devices = SERVICES["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]
    assert "deploy" not in SERVICES["worker-gpu-without-gpu"]
    assert all(SERVICES[name]["shm_size"] == "8gb" for name in gpu)


def test_dvc_keeps_its_cache_in_the_volume_and_pushes_to_the_store() -> None:
    content = COMPOSE["configs"]["dvc"]["content"]
    image = last("cpu", "RUN")
    for line in (f"dir = {HOME}/dvc/cache", f"site_cache_dir = {HOME}/dvc/site"):
        assert line in content
        assert line in image
    bucket = SERVICES["store"]["environment"]["S3_BUCKET"]
    assert f"url = s3://{bucket}/dvc" in content
    assert SERVICES["worker-cpu"]["environment"]["CHUNK_GRPO_PUBLISH"] == f"s3://{bucket}/published"
