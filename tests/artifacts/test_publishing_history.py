"""The history of evaluations on a real S3 server."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import s3fs

from chunk_grpo.artifacts.publishing import publish
from chunk_grpo.artifacts.run_record import RunFacts
from chunk_grpo.errors import DataError
from chunk_grpo.reporting.history import measure
from chunk_grpo.reporting.history_store import record
from tests.reporting.history_cases import Case, evaluation, write_workspace


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


def test_wrong_keys_and_no_bucket(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measure(write_workspace(tmp_path), evaluation(0))
    with pytest.raises(DataError, match=r"no-such-bucket/tiny.*: cannot write: .*Does the bucket or folder"):
        record("s3://no-such-bucket", measured)
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(DataError, match=r"tiny/history\.parquet: cannot write: no permission"):
        record(bucket, measured)
