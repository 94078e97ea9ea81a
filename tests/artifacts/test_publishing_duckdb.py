"""DuckDB over published tables, in a folder and on a real S3 server."""

from pathlib import Path

import duckdb
import s3fs

from chunk_grpo.artifacts.publishing import publish
from tests.artifacts.test_publishing import RUN, make_workspace

QUERY = (
    "SELECT policy, scorer, avg(value) FROM '{}/tiny/scores/*/*.parquet' WHERE metric = 'score' GROUP BY ALL"
)


def test_sql_over_a_folder(tmp_path: Path) -> None:
    publish(make_workspace(tmp_path / "workspace"), tmp_path, RUN)
    assert duckdb.sql(QUERY.format(tmp_path)).fetchall() == [("base", "clip", 0.25)]


def test_sql_over_s3(bucket: str, tmp_path: Path) -> None:
    """Through s3fs: DuckDB's own S3 client is an extension that it would download."""
    publish(make_workspace(tmp_path), f"{bucket}/published", RUN)
    with duckdb.connect() as database:
        database.register_filesystem(s3fs.S3FileSystem(skip_instance_cache=True))
        assert database.sql(QUERY.format(f"{bucket}/published")).fetchall() == [("base", "clip", 0.25)]
