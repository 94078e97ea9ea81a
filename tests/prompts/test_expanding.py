"""A small file can hold a great deal: what is read of it is bounded, and a message quotes little of it."""

import json
import re
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from chunk_grpo.prompts import records
from tests.prompts.files import LENIENT, checked, read, refused, write
from tests.prompts.test_read import parquet


def test_a_parquet_file_with_too_many_rows_is_refused_by_its_footer(tmp_path: Path) -> None:
    rows = pa.DictionaryArray.from_arrays(pa.array(np.zeros(4_000_000, np.int8)), pa.array(["a cat"]))
    path = parquet(tmp_path / "p.parquet", prompt=rows)
    del rows
    begin = time.monotonic()
    message = "must have at most 2,000,000 records, got 4,000,000; set the file's `limit`"
    assert refused(path).startswith(message)
    found = checked(path, LENIENT, limit=3)
    assert [row.text for row in found.rows] == ["a cat"]
    assert time.monotonic() - begin < 5  # minutes without the limit


@pytest.mark.parametrize("name", ["p.txt", "p.jsonl", "p.csv", "p.json"])
def test_other_files_have_the_same_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORDS", 3)
    content = {"p.json": json.dumps(["a"] * 4), "p.csv": "prompt\n" + "a\n" * 4}.get(name, '"a"\n' * 4)
    path = write(tmp_path / name, content)
    assert refused(path, LENIENT).startswith("must have at most 3 records, got more")
    assert len(read(path, LENIENT, limit=3)) == 1


def test_long_values_of_a_parquet_file_do_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_MAX_BYTES", 10**8)
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int8()), pa.array(["x" * 20_000]))
    path = parquet(tmp_path / "p.parquet", prompt=["a cat"] * 20_000, more=long)
    assert path.stat().st_size < 10**6
    assert re.match(r"row \d+: the rows up to here must have at most .* `metadata_fields`", refused(path))
    assert read(path, LENIENT, metadata_fields=()) == ["a cat"]


def test_long_field_names_are_truncated_in_message(tmp_path: Path) -> None:
    for header in ("a" * 100_000, ",".join(f"c{number}" for number in range(20_000))):
        message = refused(write(tmp_path / "p.csv", f"{header}\n1\n"))
        assert "...; name it by `prompt_field`" in message
        assert len(message) < 500


def test_many_fields_are_read_at_once(tmp_path: Path) -> None:
    header = ",".join(["prompt", *(f"c{number}" for number in range(20_000))])
    path = write(tmp_path / "p.csv", f"{header}\na{',1' * 20_000}\n")
    begin = time.monotonic()
    (note,) = checked(path).report.notes
    assert time.monotonic() - begin < 5
    assert len(note) < 500
