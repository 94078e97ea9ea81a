"""infra/kubernetes: Kubernetes' own schemas, and ours: pinned, no root, least privilege, secrets by reference."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
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

MANIFESTS = [each for path in sorted((INFRA / "kubernetes").glob("*.yaml")) for each in documents(path)]


def job(pool: str, **values: Any) -> dict[str, Any]:
    """Resources that the dispatcher of a pool creates for a flow run."""
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


def sources(pod: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """The config maps or secrets that its containers read."""
    found = [each[kind] for container in pod["containers"] for each in container["envFrom"] if kind in each]
    return {each["name"]: each for each in found}


@pytest.mark.parametrize("version", ["1.31.0", kubernetes_validate.latest_version()])
def test_every_manifest_and_the_job_of_a_flow_run_fit_the_schema_of_their_kind(version: str) -> None:
    for each in [*MANIFESTS, *map(job, POOLS)]:
        kubernetes_validate.validate(each, version, strict=True)
    for each in MANIFESTS:
        assert each["metadata"].get("namespace") == (None if each["kind"] == "Namespace" else "chunk-grpo")


def test_a_job_of_several_machines_can_wait_in_a_queue_of_kueue() -> None:
    """Kueue reads the label of the Job, and its number of pods, requests and limits."""
    queue = {"kueue.x-k8s.io/queue-name": "gpus"}
    made = job("gpu", machines=4, gpu_count=8, labels=queue)
    kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)
    assert made["metadata"]["labels"] == queue
    assert made["spec"]["parallelism"] == made["spec"]["completions"] == 4
    assert made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 8


@every_pod
def test_a_pod_is_pinned_bounded_and_let_into_a_namespace_of_the_standard_restricted(name: str) -> None:
    pod = PODS[name]
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["runAsGroup"] == UID
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert PINNED.fullmatch(container["image"])
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
    assert {"hostNetwork", "hostPID", "hostIPC"}.isdisjoint(pod)
    assert all("hostPath" not in volume for volume in pod.get("volumes", []))
    labels = named("Namespace")["chunk-grpo"]["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}


@every_pod
def test_everything_that_a_pod_refers_to_is_there_and_no_secret_is_a_value(name: str) -> None:
    pod = PODS[name]
    assert pod["serviceAccountName"] in named("ServiceAccount")
    assert sources(pod, "configMapRef").keys() <= named("ConfigMap").keys()
    assert sources(pod, "secretRef").keys() <= named("Secret").keys()
    assert sources(pod, "configMapRef") or name == "server", "how does it find the server?"
    for container in pod["containers"]:
        mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
        assert mounts == {volume["name"] for volume in pod.get("volumes", [])}
        for variable in container.get("env", []):
            assert is_known(variable["name"]) and not SECRET.search(variable["name"]), variable
    claims = [v["persistentVolumeClaim"] for v in pod.get("volumes", []) if "persistentVolumeClaim" in v]
    assert {claim["claimName"] for claim in claims} <= named("PersistentVolumeClaim").keys()


def test_the_example_of_the_secrets_has_no_values_and_known_keys() -> None:
    for secret in named("Secret").values():
        assert set(secret["stringData"].values()) == {""}
        assert "data" not in secret
        assert all(is_known(key) and SECRET.search(key) for key in secret["stringData"])
    for settings in named("ConfigMap").values():
        assert all(is_known(key) and not SECRET.search(key) for key in settings["data"])


def test_a_dispatcher_may_start_and_watch_jobs_and_nothing_else() -> None:
    rules = named("Role")["dispatcher"]["rules"]
    assert {resource: rule["verbs"] for rule in rules for resource in rule["resources"]} == {
        "jobs": ["create", "delete", "get", "list", "watch"],
        "pods": ["get", "list", "watch"],
        "pods/log": ["get"],
    }
    assert named("ClusterRole") == {} == named("ClusterRoleBinding")
    assert named("ServiceAccount")["setup"]["automountServiceAccountToken"] is False


def test_only_the_server_has_the_database_and_only_the_set_up_the_webhook() -> None:
    for secret, holder in (("server", "server"), ("notify", "setup")):
        assert [name for name, pod in PODS.items() if secret in sources(pod, "secretRef")] == [holder]
    assert "PREFECT_SERVER_DATABASE_CONNECTION_URL" in named("Secret")["server"]["stringData"]
    assert "CHUNK_GRPO_NOTIFY_WEBHOOK" in named("Secret")["notify"]["stringData"]
    (port,) = named("Service")["server"]["spec"]["ports"]
    assert named("ConfigMap")["settings"]["data"]["PREFECT_API_URL"] == f"http://server:{port['port']}/api"


@pytest.mark.parametrize("pool", POOLS)
def test_dispatcher_serves_one_pool_and_passes_auth_by_reference(pool: str) -> None:
    container = PODS[f"dispatcher-{pool}"]["containers"][0]
    assert container["args"][3:7] == ["--pool", pool, "--type", "kubernetes"]
    assert ("--with-healthcheck" in container["args"]) == ("livenessProbe" in container)
    environment = {each["name"]: each["value"] for each in container["env"]}
    prefix = "PREFECT_INTEGRATIONS_KUBERNETES_WORKER_API_AUTH_STRING_SECRET"
    secret = named("Secret")[environment[f"{prefix}_NAME"]]
    assert environment[f"{prefix}_KEY"] in secret["stringData"]


@pytest.mark.parametrize("pool", POOLS)
def test_a_flow_run_has_its_state_shared_memory_no_rights_and_on_the_pool_gpu_a_gpu(pool: str) -> None:
    pod = job(pool)["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts[HOME]["persistentVolumeClaim"] == {"claimName": f"home-{pool}"}
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert pod["automountServiceAccountToken"] is False
    assert job(pool)["spec"]["backoffLimit"] == 0  # a lost run is started again by an automation
    assert ("nvidia.com/gpu" in pod["containers"][0]["resources"]["limits"]) == (pool == "gpu")
    assert {each["optional"] for each in sources(pod, "secretRef").values()} == {True}


@pytest.mark.parametrize("machines", [1, 2])
def test_the_pods_of_a_job_share_a_key_that_the_first_makes(machines: int, tmp_path: Path) -> None:
    """The second waits for it."""
    container = job("gpu", machines=machines)["spec"]["template"]["spec"]["containers"][0]
    (tmp_path / "python").write_text(
        "#!/bin/sh\necho $PET_NODE_RANK of $PET_NNODES at $PET_MASTER_ADDR: $*; cat $CHUNK_GRPO_MACHINES_KEY\n"
    )
    (tmp_path / "python").chmod(0o755)
    pods = []
    for index in reversed(range(machines)):
        variables = {
            "JOB_COMPLETION_INDEX": str(index),
            "HOSTNAME": f"curious-owl-x2z-{index}",
            "PREFECT_HOME": str(tmp_path),
            "PATH": f"{tmp_path}:/usr/bin:/bin",
        }
        command = [*container["command"][2:], "sh", "-c", "echo $PET_NODE_RANK; cat $CHUNK_GRPO_MACHINES_KEY"]
        pods.append(subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True))
    followers, first = (
        [pod.communicate(timeout=30)[0] for pod in pods[:-1]],
        pods[-1].communicate(timeout=30)[0],
    )
    if machines == 1:
        assert first == "0\n" and not (tmp_path / "keys").exists()
        return
    (key,) = (tmp_path / "keys").iterdir()
    assert key.stat().st_mode & 0o777 == 0o600 and len(key.read_text()) == 45
    assert first == f"0\n{key.read_text()}"
    assert followers == [f"1 of 2 at curious-owl-x2z-0.machines: -m stages.follow\n{key.read_text()}"]
