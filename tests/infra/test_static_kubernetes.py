"""infra/kubernetes: Kubernetes' schemas, the standard `restricted`, and names and commands that exist."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from prefect.cli._app import _app

from tests.docs.commands import problems
from tests.infra.deployment_files import HOME, INFRA, POOLS, ROOT, UID, documents, is_known, rendered, template

FOLDER = INFRA / "kubernetes"
FILES = {path.name.removesuffix(".yaml"): documents(path) for path in sorted(FOLDER.glob("*.yaml"))}
(SERVER,), (DISPATCHER,) = FILES.pop("server.values"), FILES.pop("dispatcher.values")
MANIFESTS = [each for found in FILES.values() for each in found]
VERSIONS = ("1.31.0", kubernetes_validate.latest_version())


def job(pool: str, **values: Any) -> dict[str, Any]:
    """Resources that the dispatcher of a pool creates for a flow run."""
    filled = {"name": "curious-owl", "command": ["prefect", "flow-run", "execute"], "env": []}
    return dict(rendered(template("kubernetes", pool), **filled, **values)["job_manifest"])


def pods(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each["spec"]["template"]["spec"] for each in manifests if each["kind"] in ("Deployment", "Job")]


def names(manifests: list[dict[str, Any]], kind: str) -> set[str]:
    return {each["metadata"]["name"] for each in manifests if each["kind"] == kind}


def check(manifests: list[dict[str, Any]]) -> None:
    """They fit the schemas, and a namespace of the standard `restricted` with NetworkPolicies lets the pods in."""
    for each in manifests:
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)
    for pod in pods(manifests):
        for container in pod["containers"]:
            context = pod["securityContext"] | container["securityContext"]
            assert (context["runAsNonRoot"], context["runAsUser"], context["runAsGroup"]) == (True, UID, UID)
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_manifests_and_jobs_fit_the_cluster_and_refer_to_each_other() -> None:
    everything = [*MANIFESTS, *map(job, POOLS)]
    check(everything)
    secrets = (ROOT / "docs" / "deploy.md").read_text("utf-8").split("## Kubernetes")[1].split("\n## ")[0]
    for pod in pods(everything):
        (container,) = pod["containers"]
        assert pod["serviceAccountName"] in names(MANIFESTS, "ServiceAccount")
        for source in container["envFrom"]:
            if "configMapRef" in source:
                assert source["configMapRef"]["name"] in names(MANIFESTS, "ConfigMap")
            else:
                assert f"| `{source['secretRef']['name']}` |" in secrets
        for volume in pod.get("volumes", []):
            claim = volume.get("persistentVolumeClaim", {"claimName": "home-cpu"})["claimName"]
            assert claim in names(MANIFESTS, "PersistentVolumeClaim")
    for pool in POOLS:
        mounts = job(pool)["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        assert {each["mountPath"] for each in mounts} == {HOME, "/dev/shm"}


def test_commands_and_settings_exist() -> None:
    (setup,) = [pod["containers"][0] for pod in pods(MANIFESTS)]
    assert problems(" ".join(setup["args"]).replace("=", " ")) == []
    assert problems(" ".join(SERVER["server"]["args"])) == []
    (settings,) = [each["data"] for each in MANIFESTS if each["kind"] == "ConfigMap"]
    assert [key for key in settings if not is_known(key)] == []
    url = f"http://{SERVER['fullnameOverride']}:4200/api"
    assert DISPATCHER["worker"]["selfHostedServerApiConfig"]["apiUrl"] == url
    assert settings["PREFECT_API_URL"] == url


@pytest.mark.network
def test_the_charts_make_what_the_manifests_expect() -> None:
    """With `helm` and the charts (docs/deploy.md, "What was checked")."""
    charts = os.environ.get("CHARTS_SOURCE")
    if not charts or not shutil.which("helm"):
        pytest.skip("needs helm, and CHARTS_SOURCE=FOLDER with the charts prefect-server and prefect-worker")

    def made(release: str, chart: str, values: str, *options: str) -> list[dict[str, Any]]:
        command = ["helm", "template", release, Path(charts or "") / chart, "--namespace", "chunk-grpo", *options]
        command += ["--values", FOLDER / f"{values}.values.yaml"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [each for each in yaml.safe_load_all(text) if each]

    server = made("server", "prefect-server", "server")
    check(server)
    (policy,) = [e["spec"] for e in MANIFESTS if e["kind"] == "NetworkPolicy" and e["metadata"]["name"] == "server"]
    (deployment,) = [each["spec"]["template"] for each in server if each["kind"] == "Deployment"]
    assert policy["podSelector"]["matchLabels"].items() <= deployment["metadata"]["labels"].items()
    environment = [each["name"] for each in deployment["spec"]["containers"][0]["env"]]
    assert [name for name in environment if name != "HOME" and not is_known(name)] == []
    assert names(server, "Service") == {"server"}
    for pool in POOLS:
        name = f"dispatcher-{pool}"
        dispatcher = made(name, "prefect-worker", "dispatcher", f"--set=worker.config.workPool={pool}")
        check(dispatcher)
        assert names(dispatcher, "Deployment") == names(dispatcher, "Role") == {name}
        command = pods(dispatcher)[0]["containers"][0]["args"]
        _app.parse_args(command[1:], exit_on_error=False, print_error=False)


def test_the_first_pod_of_a_job_runs_it_and_the_others_follow(tmp_path: Path) -> None:
    container = job("gpu", machines=2)["spec"]["template"]["spec"]["containers"][0]
    say = 'echo "$PET_NODE_RANK of $PET_NNODES at $PET_MASTER_ADDR in $CHUNK_GRPO_MACHINES: $*"'
    (tmp_path / "python").write_text(f"#!/bin/sh\n{say}\n")
    (tmp_path / "python").chmod(0o755)
    told = []
    for index in ("0", "1"):
        names = {"JOB_COMPLETION_INDEX": index, "HOSTNAME": f"curious-owl-x2z-{index}"}
        variables = names | {"PREFECT_HOME": HOME, "PATH": f"{tmp_path}:/usr/bin:/bin"}
        command = [*container["command"][2:], "python", "flow"]
        told.append(subprocess.run(command, env=variables, capture_output=True, text=True).stdout)
    where = f"of 2 at curious-owl-x2z-0.machines in {HOME}/machines/curious-owl-x2z"
    assert told == [f"0 {where}: flow\n", f"1 {where}: -m stages.follow\n"]
