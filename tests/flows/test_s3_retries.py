"""Reading and writing the DVC remote is tried again where that may help, and only there: by flow runs on a server."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.drills.watch import Run, Watch, load
from tests.flows.faults import served, slow_prepare
from tests.flows.test_s3 import add_remote, store
from tests.s3_server import server_on
from tests.small_pipeline import Shell
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS = 10
"""Duration of the first stage, in which the remote is broken before the push."""


@pytest.fixture
def credentials(s3_credentials: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Sets the secret where workers that run already find it: in the file of the AWS chain."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    def write(secret: str) -> None:
        text = f"[default]\naws_access_key_id = key\naws_secret_access_key = {secret}\n"
        (tmp_path / "credentials").write_text(text)

    write("secret")
    return write


@pytest.fixture
def watch(
    s3_port: int, credentials: object, tmp_path: Path, make_pipeline: Callable[[Path], Path], shell: Shell
) -> Iterator[Watch]:
    """The small pipeline with a remote, and with a first stage that takes its time."""

    def slowly(folder: Path) -> Path:
        root = make_pipeline(folder)
        slow_prepare(root, SECONDS)
        add_remote(root, "s3://retries/dvc", shell)
        return root

    with served(tmp_path / "checkout", slowly) as made:
        yield made


def begun(watch: Watch) -> str:
    """A run whose first stage works: the remote has been asked for it, and gets it next."""
    run = watch.start(preset="smoke", until="prepare")
    wait_for(lambda: watch.stage(run, "stages.work prepare"), 120, "prepare runs")
    return run


def named(watch: Watch, run: str, task: str) -> list[Run]:
    """The task runs whose names begin so."""
    return [found for found in watch.tasks(run) if found["name"].startswith(task)]


def attempts(watch: Watch, run: str, task: str) -> int:
    """Number of attempts of the only task with a name."""
    (found,) = named(watch, run, task)
    return int(found["run_count"])


def test_a_push_is_tried_again_when_the_server_was_away(watch: Watch, s3_port: int, tmp_path: Path) -> None:
    with server_on(s3_port, tmp_path / "s3"):
        store().mkdir("retries")
        run = begun(watch)

    def waits() -> bool:
        return [task["state_name"] for task in named(watch, run, "push")] == ["AwaitingRetry"]

    wait_for(waits, 60, "the first push failed")
    with server_on(s3_port, tmp_path / "s3"):
        ended = watch.ended(run, 60)
        assert ended["state_type"] == "COMPLETED", ended["state"]["message"]
        assert store().find("retries/dvc/files/md5")
    assert attempts(watch, run, "push") == 2


def test_a_wrong_secret_is_not_tried_again_and_the_next_run_completes(
    watch: Watch, s3_port: int, tmp_path: Path, credentials: Callable[[str], None]
) -> None:
    with server_on(s3_port, tmp_path / "s3"):
        store().mkdir("retries")
        credentials("wrong")
        at_restore = watch.start(preset="smoke", until="prepare")
        refused(watch, at_restore, "restore")
        assert named(watch, at_restore, "prepare") == []
        credentials("secret")
        at_push = begun(watch)
        credentials("wrong")
        refused(watch, at_push, "push")
        assert watch.outcomes(at_push) == {"prepare": "ran"}
        credentials("secret")
        assert store().find("retries/dvc") == []
        after = watch.start(preset="smoke", until="prepare")
        assert watch.ended(after, 120)["state_type"] == "COMPLETED"
        assert watch.outcomes(after) == {"prepare": "restored"}
        assert store().find("retries/dvc/files/md5")


def refused(watch: Watch, run: str, task: str) -> None:
    """The run fails at this task, without another try."""
    ended = watch.ended(run, 120)
    assert ended["state_type"] == "FAILED"
    assert "Check the remote's URL" in ended["state"]["message"]
    assert "Forbidden" in ended["state"]["message"]
    assert attempts(watch, run, task) == 1


def test_publishing_is_tried_again_when_the_server_hung(
    s3_port: int, tmp_path: Path, make_pipeline: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time-outs of a second; by default they take minutes."""
    monkeypatch.setenv("FSSPEC_S3", '{"config_kwargs": {"read_timeout": 1, "connect_timeout": 1}}')
    root = tmp_path / "checkout"
    with served(root, make_pipeline, publish="s3://results") as watch:

        def waits() -> bool:
            return [task["state_name"] for task in named(watch, run, "publish")] == ["AwaitingRetry"]

        with socket.create_server(("127.0.0.1", s3_port)):  # the kernel connects; nobody answers
            run = watch.start(preset="smoke")
            wait_for(lambda: named(watch, run, "publish"), 240, "publishing")
            start = time.monotonic()
            wait_for(waits, 240, "the first attempt failed")
            print(f"first attempt failed after {time.monotonic() - start:.1f} s; {load()}")  # noqa: T201
        with server_on(s3_port, tmp_path / "s3"):
            store().mkdir("results")
            assert watch.ended(run, 240)["state_type"] == "COMPLETED"
            print(f"Completed after {time.monotonic() - start:.1f} s; {load()}")  # noqa: T201
            assert store().exists("results/smoke/run.json")
        assert attempts(watch, run, "publish") >= 2
