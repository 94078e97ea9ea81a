"""Checks and decisions of set-up, workers and `make serve` before they contact a server."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from chunk_grpo.environment import SCORE_MOVED
from chunk_grpo.errors import ConfigError
from infra import serve, worker
from infra.deployments import deployments_file
from infra.local_prefect import DATABASE, LocalPrefect, free_port, shares
from infra.setup import NOTIFICATIONS, SetUp, SetUpError, automations, read_template

REPOSITORY = Path(__file__).resolve().parents[2]
TEMPLATE = {"job_configuration": {}, "variables": {"type": "object", "properties": {}}}


def test_only_a_pool_with_a_template_gets_another_type_and_only_gpu_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps(TEMPLATE))
    wanted = SetUp(tmp_path, gpu_workers=3, pool_type="kubernetes", templates={"gpu": file}).pools()
    found = [(pool.name, pool.type, pool.base_job_template, pool.concurrency_limit) for pool in wanted]
    assert found == [("cpu", "process", {}, None), ("gpu", "kubernetes", TEMPLATE, 3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"gpu_workers": 0}, "at least 1, got 0"), ({"pool_type": "kubernetes"}, "needs a base job template: --template")],
)
def test_rejects_invalid_pool_settings(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SetUpError, match=message):
        SetUp(**arguments).pools()


def test_pools_that_parameters_or_presets_name_get_the_deployments_of_stages(tmp_path: Path) -> None:
    """The UI sets their limits. A pool `cpu` that stages name gets no deployments of stages."""
    (tmp_path / "conf" / "preset").mkdir(parents=True)
    (tmp_path / "conf" / "preset" / "big.yaml").write_text("pools: {train: h100, score: null, encode: cpu}\n")
    (tmp_path / "conf" / "preset" / "none.yaml").write_text("# no pools\n")
    (tmp_path / "params.yaml").write_text("pools: {train: l40s}\n")
    wanted = SetUp(root=tmp_path, more_pools=["a100"])
    assert [pool.name for pool in wanted.pools()] == ["cpu", "gpu", "a100", "h100", "l40s"]
    assert [pool.concurrency_limit for pool in wanted.pools()] == [None, 1, None, None, None]
    found = yaml.safe_load(deployments_file(REPOSITORY, [], wanted.stage_pools()))["deployments"]
    of_pool = {one["name"]: one for one in found if one["work_pool"]["name"] == "h100"}
    assert set(of_pool) == {f"{stage}-h100" for stage in ("encode", "profile", "train", "generate", "score")}
    assert of_pool["train-h100"]["entrypoint"] == "flows/stage.py:train"
    assert len(found) == len({one["name"] for one in found}) == 8 + 3 * 5
    (tmp_path / "params.yaml").write_text("{")
    with pytest.raises(SetUpError, match=r"parameters must be YAML: (?s:.*)params\.yaml"):
        wanted.pools()


@pytest.mark.parametrize("text", ["{", "[]", '{"variables": {}}'])
def test_invalid_template_error_names_the_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "template.json"
    file.write_text(text)
    with pytest.raises(SetUpError, match=str(file)):
        read_template(file)


def test_gpus_are_shared_out() -> None:
    devices = ["0", "1", "2", "3"]
    assert shares(devices, 1) == [{}]
    assert shares(devices, 2) == [{"CUDA_VISIBLE_DEVICES": "0,2"}, {"CUDA_VISIBLE_DEVICES": "1,3"}]
    assert shares([], 2) == [{}, {}]
    with pytest.raises(SetUpError, match="GPU_WORKERS=5, but only 4 GPUs are visible"):
        shares(devices, 5)


def test_the_number_of_gpu_workers_is_whole_and_not_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, number in {"": None, "0": 0, "4": 4}.items():
        monkeypatch.setenv("GPU_WORKERS", text)
        assert serve.from_environment().gpu_workers == number
    for text in ("-1", "two", "1.5"):
        monkeypatch.setenv("GPU_WORKERS", text)
        with pytest.raises(ConfigError, match="GPU_WORKERS: must be a whole number of at least 0"):
            serve.from_environment()


SERVED = {
    "PREFECT_SERVER_DATABASE_CONNECTION_URL": "postgresql+asyncpg://prefect:secret@database/prefect",
    "PREFECT_API_DATABASE_PASSWORD": "secret of the database",
    "CHUNK_GRPO_NOTIFY_WEBHOOK": "https://chat.example.org/secret",
    "CHUNK_GRPO_PUBLISH": "s3://bucket/published",
    "CHUNK_GRPO_REPORTS_URL": "https://reports.example.org",
}
"""Environment of a shell for a real server."""


@pytest.fixture
def serving_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SERVED.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("serving_shell")
def test_checks_and_drills_ignore_make_serve_settings(tmp_path: Path) -> None:
    prefect = LocalPrefect(root=tmp_path, home=tmp_path / "home", port=4300)
    assert prefect.published == tmp_path / "home" / "published"
    assert prefect.environment["CHUNK_GRPO_PUBLISH"] == str(tmp_path / "home" / "published")
    assert prefect.environment["CHUNK_GRPO_REPORTS_URL"] == prefect.reports_url == "http://127.0.0.1:4301"
    assert [name for name, value in prefect.environment.items() if value in SERVED.values()] == []
    assert not prefect.server
    inside = LocalPrefect(root=tmp_path, home=tmp_path / "home", publish="results")
    assert inside.environment["CHUNK_GRPO_PUBLISH"] == str(inside.published) == str(tmp_path / "results")


@pytest.mark.usefixtures("serving_shell")
def test_make_serve_reads_settings_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "user:secret")
    prefect = serve.from_environment()
    assert prefect.server["PREFECT_SERVER_API_AUTH_STRING"] == "user:secret"
    assert prefect.server[DATABASE] == SERVED[DATABASE]
    assert prefect.webhook is not None
    assert prefect.webhook.get_secret_value() == SERVED["CHUNK_GRPO_NOTIFY_WEBHOOK"]
    assert prefect.published is None
    assert prefect.reports_url == "https://reports.example.org"
    assert prefect.environment["CHUNK_GRPO_PUBLISH"] == "s3://bucket/published"
    assert "secret" not in repr(prefect)
    assert "secret" not in str(prefect.environment)


def test_a_worker_needs_a_clone_of_the_repository_and_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dvc.yaml", "flows", ".git", ".dvc"):
        with pytest.raises(SetUpError, match=r"has no .*CHUNK_GRPO_REPOSITORY"):
            worker.check(tmp_path, "gpu")
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetUpError, match="git is not installed"):
        worker.check(tmp_path, "gpu")


def test_a_worker_s_environment_says_where_it_works(tmp_path: Path) -> None:
    limit = "PREFECT_SERVER_EVENTS_MAXIMUM_SIZE_BYTES"  # Prefect's client has it, too
    base = {"PATH": "/bin", "PREFECT_API_URL": "http://elsewhere/api", "AWS_PROFILE": "kept"} | SERVED
    base |= {"PREFECT_SERVER_API_AUTH_STRING": "user:secret", "PREFECT_API_AUTH_STRING": "user:secret"}
    base |= {"PREFECT_SERVER_DATABASE_PASSWORD": "secret", limit: "2000000"}
    environment = worker.worker_environment(base, tmp_path / "clone", tmp_path / "home", "http://server/api")
    assert environment["CHUNK_GRPO_REPOSITORY"] == str(tmp_path / "clone")
    assert environment["PREFECT_HOME"] == str(tmp_path / "home")
    assert environment["PREFECT_API_URL"] == "http://server/api"
    assert environment["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"
    assert environment["AWS_PROFILE"] == "kept"
    assert "CHUNK_GRPO_NOTIFY_WEBHOOK" not in environment
    assert {name for name in environment if name.startswith(("PREFECT_SERVER", "PREFECT_API_D"))} == {limit}
    assert environment["PREFECT_API_AUTH_STRING"] == "user:secret"
    assert environment["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/bin"]


@pytest.mark.parametrize("pool", ["cpu", "gpu"])
def test_a_worker_knows_its_own_process_id(pool: str) -> None:
    line = worker.command(pool, "name", 1)
    assert line[-2:] == ["--limit", "1"]
    own = f"import os; print(int(os.environ['{worker.WORKER_PID}']) - os.getpid())"
    command = [*line[: line.index(sys.executable)], sys.executable, "-c", own]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0\n"


def test_flows_are_loaded_from_the_repository_of_the_worker(tmp_path: Path) -> None:
    """Prefect fills in `{{ $VARIABLE }}` at deployment, and drops other unknown names on the worker."""
    pull = yaml.safe_load(deployments_file(REPOSITORY, []))["pull"]
    first, second = (next(iter(step.values())) for step in pull)
    assert second["directory"] == f"{{{{ {first['id']}.stdout }}}}"
    assert "{{" not in first["script"]
    command = shlex.split(first["script"])
    environment = {"PATH": os.environ["PATH"]}
    given = environment | {"CHUNK_GRPO_REPOSITORY": "/a folder/clone"}
    assert subprocess.run(command, env=given, capture_output=True, text=True).stdout == "/a folder/clone"
    missing = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert missing.returncode != 0
    assert "CHUNK_GRPO_REPOSITORY: not set for this worker" in missing.stderr


def test_scores_that_moved_are_told_by_the_event_that_flows_send() -> None:
    found = automations(NOTIFICATIONS, BLOCK="00000000-0000-0000-0000-000000000001")
    assert [each.actions[0].block_document_id.int for each in found] == [1, 1, 1]  # type: ignore[union-attr]
    assert found[-1].trigger.expect == {SCORE_MOVED}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("origin", "printed"),
    [
        (None, "{folder}"),
        ("https://example.org/chunk-grpo.git", "https://example.org/chunk-grpo.git"),
        ("git@example.org:chunk-grpo.git", "git@example.org:chunk-grpo.git"),
        ("https://me:secret@example.org/chunk-grpo.git", ""),
    ],
)
def test_workers_of_prefect_clone_the_origin(origin: str | None, printed: str, tmp_path: Path) -> None:
    """An address with a token is refused: every reader of the deployment would see it."""
    step = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())["build"][0]
    command = shlex.split(step["prefect.deployments.steps.run_shell_script"]["script"])
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    if origin is not None:
        subprocess.run(["git", "remote", "add", "origin", origin], cwd=tmp_path, check=True)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == printed.format(folder=tmp_path)
    assert (done.returncode != 0) == ("has a user or a token" in done.stderr) == (printed == "")


@pytest.mark.skipif(sys.platform != "linux", reason="reads which ports Linux hands out")
def test_no_outgoing_connection_has_the_port_of_a_drill_or_the_next_one() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(free_port() for _ in range(200)) + 1 < lowest
