"""Fixtures: a real S3 server on this machine, and what a user sets to reach it. A plugin of tests/conftest.py."""

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import wait_for

START_LIMIT = 30.0
"""Seconds within which the server must answer."""


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a running nanio server that checks signatures; its keys are `key` and `secret`."""
    port = free_port()
    with server_on(port, tmp_path_factory.mktemp("s3")):
        yield f"http://127.0.0.1:{port}"


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server_on(port: int, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A nanio server with its objects in `folder`; a later one on the same folder goes on with them."""
    command = [sys.executable, "-m", "nanio", "serve", "--data-dir", str(folder), "--host", "127.0.0.1"]
    environment = os.environ | {"NANIO_ACCESS_KEY": "key", "NANIO_SECRET_KEY": "secret"}
    log = (folder.parent / f"{folder.name}.log").open("ab")
    with log, subprocess.Popen([*command, "--port", str(port)], env=environment, stdout=log, stderr=log) as server:
        try:
            wait_for(lambda: listens(port) or server.poll() is not None, START_LIMIT, "nanio")
            assert server.poll() is None, f"nanio did not start (exit code {server.returncode})"
            yield server
        finally:
            server.terminate()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def bucket(s3_endpoint: str, s3_credentials: None) -> str:
    """The URL of a new bucket."""
    import s3fs  # takes a second, which most tests can spare

    name = f"test-{uuid.uuid4().hex[:12]}"
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(name)
    return f"s3://{name}"


@pytest.fixture
def s3_credentials(s3_endpoint: str, no_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment with which a user reaches the server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def s3_port(s3_credentials: None, monkeypatch: pytest.MonkeyPatch) -> int:
    """Port of a server that the test starts and restarts."""
    number = free_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{number}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    return number


@pytest.fixture
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment in which the AWS chain finds nothing."""
    import s3fs

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    s3fs.S3FileSystem.clear_instance_cache()  # an instance keeps the credentials it was made with
    yield
    s3fs.S3FileSystem.clear_instance_cache()
