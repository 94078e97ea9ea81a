"""Publishing to a real S3 server, and reading there as others do."""

import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import s3fs

from chunk_grpo.artifacts import publishing, read_table
from chunk_grpo.artifacts.publishing import publish
from chunk_grpo.artifacts.run_record import RunFacts, read_record
from chunk_grpo.errors import DataError, TransientError
from chunk_grpo.reporting.history import measure
from chunk_grpo.reporting.history_store import record
from tests.artifacts.test_publishing import NEXT, PUBLISHED, RUN, make_workspace, names_of_a_whole_run
from tests.reporting.history_cases import Case, evaluation, write_workspace
from tests.s3_server import server_on


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return make_workspace(tmp_path / "workspace")


def test_tables_are_read_where_they_lie(bucket: str, workspace: Path) -> None:
    publish(workspace, f"{bucket}/published", RUN)
    table = f"{bucket}/published/tiny/scores/base/clip.parquet"
    assert pq.read_table(table)["value"].to_pylist() == [0.25]
    with s3fs.S3FileSystem(skip_instance_cache=True).open(table) as stream:
        assert pq.read_table(stream)["value"].to_pylist() == [0.25]
    assert read_table(table, "scores")["value"].to_pylist() == [0.25]
    page = s3fs.S3FileSystem(skip_instance_cache=True).info(f"{bucket}/published/tiny/report/index.html")
    assert page["ContentType"] == "text/html"


def test_a_history_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    """Beside a published run, which leaves it alone."""
    workspaces = [write_workspace(tmp_path / str(seed), Case(seed)) for seed in (0, 1)]
    for number, workspace in enumerate(workspaces):
        publish(workspace, bucket, RunFacts("tiny", "c0ffee", f"night-{number}"))
        done = record(bucket, measure(workspace, evaluation(number)))
    assert {row.reference for row in done.newest} == {"night-0"}
    assert len(record(bucket, measure(workspaces[1], evaluation(1))).history) == 40
    table = pq.read_table(f"{bucket}/tiny/history.parquet")
    assert table["evaluation"].to_pylist()[::20] == ["night-0", "night-1"]
    files = s3fs.S3FileSystem(skip_instance_cache=True)
    assert files.info(f"{bucket}/tiny/history.png")["ContentType"] == "image/png"


def test_older_of_two_concurrent_publications_stops(
    bucket: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer, copy = make_workspace(tmp_path / "newer", 0.5), publishing._copy

    def copy_and_let_another_begin(*arguments: object) -> None:
        copy(*arguments)  # type: ignore[arg-type]
        monkeypatch.setattr(publishing, "_copy", copy)
        assert publish(newer, bucket, NEXT).copied == 4

    monkeypatch.setattr(publishing, "_copy", copy_and_let_another_begin)
    with pytest.raises(DataError, match=r"tiny: another publication of this preset has started, so this"):
        publish(workspace, bucket, RUN)
    assert read_record(f"{bucket}/tiny/run.json").run == NEXT
    assert names_of_a_whole_run(f"{bucket}/tiny") == PUBLISHED
    assert pq.read_table(f"{bucket}/tiny/scores/base/clip.parquet")["value"].to_pylist() == [0.5]


def test_a_server_that_dies_in_the_middle(
    s3_port: int, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, copied = publishing._copy, []
    with server_on(s3_port, tmp_path / "s3") as server:
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("drill")

        def copy_until_it_dies(source: Path, *rest: object) -> None:
            if len(copied) == 2:
                server.send_signal(signal.SIGKILL)
                server.wait()
            copy(source, *rest)  # type: ignore[arg-type]
            copied.append(source)

        monkeypatch.setattr(publishing, "_copy", copy_until_it_dies)
        with pytest.raises(TransientError, match=r"^s3://drill/tiny/\S+: cannot write: the object store"):
            publish(workspace, "s3://drill", RUN)
    assert len(copied) == 2
    monkeypatch.setattr(publishing, "_copy", copy)
    with server_on(s3_port, tmp_path / "s3"):
        assert not read_record("s3://drill/tiny/run.json").complete
        assert publish(workspace, "s3://drill", RUN).copied == 4
        assert names_of_a_whole_run("s3://drill/tiny") == PUBLISHED


def test_wrong_keys(bucket: str, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(DataError, match=r"tiny/run\.json: cannot write: no permission .*Change the owner"):
        publish(workspace, bucket, RUN)


def test_no_bucket(s3_credentials: None, workspace: Path) -> None:
    with pytest.raises(DataError, match=r"no-such-bucket/tiny.*: cannot write: .*Does the bucket or folder"):
        publish(workspace, "s3://no-such-bucket", RUN)
