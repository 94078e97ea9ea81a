"""The DVC remote and published results on another S3 server than nanio: the one of OpenStack Swift, in earnest.

Its packages go into an environment of their own, kept in the user's cache folder; memcached is Debian's.
"""

import getpass
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

from chunk_grpo.artifacts.publishing import publish
from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.outcomes import RemoteError
from chunk_grpo.orchestration.pipeline import Pipeline
from tests.artifacts.test_publishing import NEXT, RUN, make_workspace
from tests.flows.test_s3 import ALL, STAGES, Machines, add_remote, restored, store
from tests.s3_server import free_port
from tests.scorers.originals.environments import python_with
from tests.small_pipeline import Shell, quiet
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PACKAGES = ("swift==2.38.3", "eventlet==0.41.3", "pyeclib==1.8.0", "setuptools==80.9.0")
RINGS = ("account", "container", "object")
START_LIMIT = 60.0

SERVER = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
"""

RING = """\
[pipeline:main]
pipeline = {kind}-server

[app:{kind}-server]
use = egg:swift#{kind}
"""

PROXY = """\
[pipeline:main]
pipeline = healthcheck cache s3api tempauth copy slo dlo proxy-server

[filter:healthcheck]
use = egg:swift#healthcheck

[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcached}

[filter:s3api]
use = egg:swift#s3api
location = us-east-1

[filter:tempauth]
use = egg:swift#tempauth
user_team_member = secret .admin

[filter:copy]
use = egg:swift#copy

[filter:slo]
use = egg:swift#slo

[filter:dlo]
use = egg:swift#dlo

[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
"""


def write_settings(folder: Path, programs: Path, ports: Mapping[str, int]) -> None:
    """One device, one copy of everything."""
    (folder / "devices" / "one").mkdir(parents=True)
    (folder / "swift.conf").write_text("[swift-hash]\nswift_hash_path_prefix = a\nswift_hash_path_suffix = b\n")
    for kind in RINGS:
        device = ("add", f"r1z1-127.0.0.1:{ports[kind]}/one", "1")
        for step in (("create", "2", "1", "0"), device, ("rebalance",)):
            ring = [programs / "swift-ring-builder", folder / f"{kind}.builder", *step]
            subprocess.run(ring, check=True, capture_output=True)
    for kind in (*RINGS, "proxy"):
        text = SERVER + (PROXY if kind == "proxy" else RING)
        values = {"port": ports[kind], "user": getpass.getuser(), "folder": folder, "kind": kind}
        (folder / f"{kind}.conf").write_text(text.format(**values, memcached=ports["memcached"]))


@pytest.fixture(scope="module")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server whose one user is `team:member`, with the key `secret`."""
    memcached = shutil.which("memcached")
    assert memcached, "this test needs memcached: apt-get install memcached"
    programs = python_with("swift", PACKAGES).parent
    folder = tmp_path_factory.mktemp("swift")
    ports = {kind: free_port() for kind in (*RINGS, "proxy", "memcached")}
    write_settings(folder, programs, ports)
    commands = [[memcached, "-l", "127.0.0.1", "-p", str(ports["memcached"]), "-U", "0", "-u", getpass.getuser()]]
    commands += [[str(programs / f"swift-{kind}-server"), str(folder / f"{kind}.conf")] for kind in (*RINGS, "proxy")]
    with ExitStack() as stack, (folder / "log").open("wb") as log:
        for command in commands:
            process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            stack.callback(process.terminate)
        url = f"http://127.0.0.1:{ports['proxy']}"
        wait_for(lambda: answers(f"{url}/healthcheck"), START_LIMIT, f"Swift, see {folder / 'log'}")
        yield url


def answers(url: str) -> bool:
    """Whether a server answers and is healthy."""
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False


@pytest.fixture
def bucket(swift: str, no_credentials: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The URL of a new bucket there, and what a user sets to reach it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", swift)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "team:member")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = tmp_path.name.replace("_", "-").lower()
    store().mkdir(name)
    return f"s3://{name}"


def test_another_machine_computes_nothing(
    bucket: str, pipeline: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in STAGES:
        assert Pipeline(pipeline, Commands()).run(stage, quiet).outcome == "ran"
    add_remote(pipeline, f"{bucket}/dvc", shell)
    (tmp_path / "a").mkdir()
    pipeline.rename(tmp_path / "a" / "checkout")
    machines = Machines(tmp_path, shell, f"{bucket}/dvc")
    first = machines.workspace("a")
    assert restored(first, pull=False) == ALL
    assert restored(machines.workspace("b")) == {}
    with monkeypatch.context() as patch, pytest.raises(RemoteError, match="Forbidden") as error:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        first.push(quiet)
    assert not error.value.may_pass
    first.push(quiet)
    second = machines.workspace("b", "2")
    assert restored(second) == ALL
    assert (second.root / "dvc.lock").read_text() == (first.root / "dvc.lock").read_text()
    assert machines.cache("b") == machines.cache("a")


def test_published_tables_are_read_where_they_lie(bucket: str, tmp_path: Path) -> None:
    assert publish(make_workspace(tmp_path / "one"), f"{bucket}/published", RUN).copied == 4
    table = f"{bucket}/published/tiny/scores/base/clip.parquet"
    assert pq.read_table(table)["value"].to_pylist() == [0.25]
    newer = publish(make_workspace(tmp_path / "two", 0.5), f"{bucket}/published", NEXT)
    assert (newer.copied, newer.unchanged, newer.removed) == (1, 3, 0)
    assert pq.read_table(table)["value"].to_pylist() == [0.5]
