"""infra/kubernetes: Kubernetes' own schemas, and ours: pinned, no root, least privilege, secrets by reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest

from tests.infra.deployment_files import (
    HOME,
    INFRA,
    PINNED,
    POOLS,
    SECRET,
    UID,
    documents,
    is_known,
    rendered,
    template,
)

VERSIONS = ("1.31.0", kubernetes_validate.latest_version())
MANIFESTS = [each for path in sorted((INFRA / "kubernetes").glob("*.yaml")) for each in documents(path)]


def job(pool: str, **values: Any) -> dict[str, Any]:
    """What the dispatcher of a pool creates for a flow run."""
    filled = {
        "name": "curious-owl",
        "command": ["prefect", "flow-run", "execute"],
        "env": [{"name": "PREFECT_API_URL", "value": "http://server/api"}],
    }
    return dict(rendered(template("kubernetes", pool), **filled, **values)["job_manifest"])


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod that these files describe, by a name for the test."""
    for each in MANIFESTS:
        if each["kind"] in ("Deployment", "Job"):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]
    for pool in POOLS:
        yield f"flow-run-{pool}", job(pool)["spec"]["template"]["spec"]


PODS = dict(pods())
every_pod = pytest.mark.parametrize("name", PODS)


def named(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in MANIFESTS if each["kind"] == kind}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("each", MANIFESTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_manifest_fits_the_schema_of_its_kind(each: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(each, version, strict=True)
    if each["kind"] != "Namespace":
        assert each["metadata"]["namespace"] == "chunk-grpo"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("pool", POOLS)
def test_the_job_of_a_flow_run_fits_the_schema(pool: str, version: str) -> None:
    kubernetes_validate.validate(job(pool), version, strict=True)


def test_the_pods_are_these() -> None:
    assert set(PODS) == {
        "server",
        "setup",
        "dispatcher-cpu",
        "dispatcher-gpu",
        "flow-run-cpu",
        "flow-run-gpu",
    }


@every_pod
def test_a_pod_is_let_into_a_namespace_of_the_standard_restricted(name: str) -> None:
    pod = PODS[name]
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["runAsGroup"] == UID
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"hostNetwork", "hostPID", "hostIPC"}.isdisjoint(pod)
    assert all("hostPath" not in volume for volume in pod.get("volumes", []))
    labels = named("Namespace")["chunk-grpo"]["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}


@every_pod
def test_a_container_is_pinned_and_bounded(name: str) -> None:
    for container in PODS[name]["containers"]:
        assert PINNED.fullmatch(container["image"])
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]


@every_pod
def test_every_variable_is_known_and_no_secret_is_a_value(name: str) -> None:
    for container in PODS[name]["containers"]:
        for variable in container.get("env", []):
            assert is_known(variable["name"])
            assert not SECRET.search(variable["name"]), variable


@every_pod
def test_everything_that_a_pod_refers_to_is_there(name: str) -> None:
    pod = PODS[name]
    assert pod["serviceAccountName"] in named("ServiceAccount")
    for container in pod["containers"]:
        sources = container["envFrom"]
        maps = {each["configMapRef"]["name"] for each in sources if "configMapRef" in each}
        secrets = {each["secretRef"]["name"] for each in sources if "secretRef" in each}
        assert maps <= named("ConfigMap").keys()
        assert secrets and secrets <= named("Secret").keys()
        mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
        assert maps or name == "server", "how does it find the server?"
        assert mounts == {volume["name"] for volume in pod.get("volumes", [])}
    claims = [v["persistentVolumeClaim"] for v in pod.get("volumes", []) if "persistentVolumeClaim" in v]
    assert {claim["claimName"] for claim in claims} <= named("PersistentVolumeClaim").keys()


def test_the_example_of_the_secrets_has_no_values_and_known_keys() -> None:
    for secret in named("Secret").values():
        assert set(secret["stringData"].values()) == {""}
        assert "data" not in secret
        assert all(is_known(key) and SECRET.search(key) for key in secret["stringData"])
    for settings in named("ConfigMap").values():
        assert all(is_known(key) and not SECRET.search(key) for key in settings["data"])


def test_the_set_up_alone_knows_the_webhook_and_has_no_rights() -> None:
    assert named("Secret")["notify"]["stringData"].keys() == {"CHUNK_GRPO_NOTIFY_WEBHOOK"}
    knows = {
        name: source["secretRef"].get("optional")
        for name, pod in PODS.items()
        for source in pod["containers"][0]["envFrom"]
        if source.get("secretRef", {}).get("name") == "notify"
    }
    assert knows == {"setup": True}
    assert PODS["setup"]["serviceAccountName"] == "setup"
    assert named("ServiceAccount")["setup"]["automountServiceAccountToken"] is False
    assert "CHUNK_GRPO_NOTIFY_WEBHOOK" not in named("Secret")["prefect"]["stringData"]


def test_the_server_is_reached_by_the_pods_of_its_namespace_where_the_settings_say() -> None:
    container = PODS["server"]["containers"][0]
    service = named("Service")["server"]["spec"]
    labels = named("Deployment")["server"]["spec"]["template"]["metadata"]["labels"]
    assert service["selector"] == labels == {"app": "server"}
    (port,) = service["ports"]
    assert port["targetPort"] == container["ports"][0]["name"]
    url = named("ConfigMap")["settings"]["data"]["PREFECT_API_URL"]
    assert url == f"http://server:{port['port']}/api"
    assert container["args"][-1] == str(container["ports"][0]["containerPort"])
    (rule,) = named("NetworkPolicy")["server"]["spec"]["ingress"]
    assert rule == {"from": [{"podSelector": {}}], "ports": [{"port": port["targetPort"]}]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/api/health", "port": "http"}


def test_only_the_server_has_the_database() -> None:
    secrets = {
        name: {
            source["secretRef"]["name"] for source in pod["containers"][0]["envFrom"] if "secretRef" in source
        }
        for name, pod in PODS.items()
    }
    assert [name for name, mine in secrets.items() if "server" in mine] == ["server"]
    assert "PREFECT_SERVER_DATABASE_CONNECTION_URL" in named("Secret")["server"]["stringData"]


def test_a_dispatcher_may_start_and_watch_jobs_and_nothing_else() -> None:
    rules = {
        resource: rule["verbs"]
        for rule in named("Role")["dispatcher"]["rules"]
        for resource in rule["resources"]
    }
    assert rules == {
        "jobs": ["create", "delete", "get", "list", "watch"],
        "pods": ["get", "list", "watch"],
        "pods/log": ["get"],
    }
    assert named("ClusterRole") == {} == named("ClusterRoleBinding")
    assert named("RoleBinding")["dispatcher"]["subjects"] == [
        {"kind": "ServiceAccount", "name": "dispatcher", "namespace": "chunk-grpo"}
    ]


@pytest.mark.parametrize("pool", POOLS)
def test_a_dispatcher_serves_one_pool_and_tells_its_health(pool: str) -> None:
    deployment = named("Deployment")[f"dispatcher-{pool}"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][3:7] == ["--pool", pool, "--type", "kubernetes"]
    assert "--with-healthcheck" in container["args"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "health"}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    # The authentication string goes to flow runs as a reference to this secret.
    environment = {each["name"]: each["value"] for each in container["env"]}
    prefix = "PREFECT_INTEGRATIONS_KUBERNETES_WORKER_API_AUTH_STRING_SECRET"
    secret = named("Secret")[environment[f"{prefix}_NAME"]]
    assert environment[f"{prefix}_KEY"] in secret["stringData"]


@pytest.mark.parametrize("pool", POOLS)
def test_a_flow_run_has_its_state_shared_memory_and_no_rights(pool: str) -> None:
    pod = PODS[f"flow-run-{pool}"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts[HOME]["persistentVolumeClaim"] == {"claimName": f"home-{pool}"}
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["fsGroup"] == UID
    assert job(pool)["spec"]["backoffLimit"] == 0


@pytest.mark.parametrize("pool", POOLS)
def test_a_flow_run_gets_keys_and_tokens_from_secrets_that_may_be_missing(pool: str) -> None:
    sources = PODS[f"flow-run-{pool}"]["containers"][0]["envFrom"]
    secrets = {
        each["secretRef"]["name"]: each["secretRef"]["optional"] for each in sources if "secretRef" in each
    }
    assert secrets == {"store": True, "tokens": True}


def test_a_flow_run_on_the_pool_gpu_gets_a_gpu_of_a_node_that_has_one() -> None:
    pod = job("gpu", gpu_count=4, shared_memory="32Gi")["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert next(v for v in pod["volumes"] if "emptyDir" in v)["emptyDir"]["sizeLimit"] == "32Gi"
    assert "nvidia.com/gpu" not in str(job("cpu"))
