"""Tables: what is written is read back, and whatever is wrong with a file is told."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chunk_grpo.artifacts import SCHEMAS, SchemaName, TableSchema, read_table, table_from_rows, write_csv, write_table
from chunk_grpo.artifacts.table_checks import REWRITE_IT
from chunk_grpo.errors import DataError

PROMPTS: list[dict[str, Any]] = [
    {"prompt_id": name, "split": split, "prompt": text, "category": "single", "metadata": "{}"}
    for name, split, text in (("a", "train", "a red circle"), ("b", "eval", "ein grüner Würfel"))
]
OF: dict[str, Any] = {"policy": "chunk", "mode": "hybrid", "train_seed": 0, "prompt_id": "a", "sample": 0}
REFUSED = OF | {"scorer": "judge", "metric": "score", "value": None, "refusal": "no answer"}
IMAGE = OF | {"seed": 7, "image": {"bytes": b"\x89PNG", "path": "a-0.png"}}


def prompts() -> pa.Table:
    return table_from_rows(PROMPTS, "prompts")


def fails(path: Path, schema_name: SchemaName = "prompts") -> str:
    with pytest.raises(DataError) as caught:
        read_table(path, schema_name)
    assert caught.value.exit_code == 3
    return str(caught.value)


MAY_BE_NULL = {"scores": ["value", "refusal"]}


def test_every_schema_has_its_own_name_and_nothing_nullable_but_refused_scores() -> None:
    assert set(SCHEMAS) == set(get_args(SchemaName))
    for name, schema in SCHEMAS.items():
        assert schema.name == name
        assert schema.version >= 1
        assert [field.name for field in schema.columns if field.nullable] == MAY_BE_NULL.get(name, [])


@pytest.mark.parametrize(("name", "rows"), [("prompts", PROMPTS), ("images", [IMAGE]), ("scores", [REFUSED])])
def test_what_is_written_is_read_back(name: SchemaName, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "table.parquet"
    write_table(table_from_rows(rows, name), path, name)
    table = read_table(path, name)
    assert table.to_pylist() == rows
    assert [entry.name for entry in path.parent.iterdir()] == ["table.parquet"]
    metadata = pq.read_schema(path).metadata
    version = str(SCHEMAS[name].version).encode()
    assert (metadata[b"chunk_grpo.schema"], metadata[b"chunk_grpo.version"]) == (name.encode(), version)


def test_images_are_marked_as_a_hugging_face_image_column() -> None:
    assert SCHEMAS["images"].metadata[b"huggingface"] == b'{"info": {"features": {"image": {"_type": "Image"}}}}'


def test_the_same_table_gives_the_same_bytes(tmp_path: Path) -> None:
    """DVC tells results apart by their bytes."""
    shuffled = prompts().select(["metadata", "prompt", "prompt_id", "category", "split"])
    write_table(prompts(), tmp_path / "a.parquet", "prompts")
    write_table(shuffled, tmp_path / "b.parquet", "prompts")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_a_table_that_does_not_fit_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "prompts.parquet"
    with pytest.raises(DataError, match=r"columns of prompts/1 do not match; missing: split; unknown:"):
        write_table(prompts().rename_columns({"split": "text"}), path, "prompts")
    null = prompts().set_column(2, "prompt", pa.array(["a", None]))
    with pytest.raises(DataError, match=r"row 1: column 'prompt' must have a value, got null"):
        write_table(null, path, "prompts")
    weights = {"plan": "x", "chunk": 0.5, "first_step": 0, "num_steps": 2, "mean_l1": 0.1, "weight": 1.0}
    with pytest.raises(DataError, match=r"does not fit the schema chunk_plan/1: .*0\.5"):
        write_table(pa.Table.from_pylist([weights]), path, "chunk_plan")
    assert list(tmp_path.iterdir()) == []


def written(path: Path) -> bytes:
    write_table(prompts(), path, "prompts")
    return path.read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"prompt,split\n",
        lambda content: content[:4] + b"\xff" * 56 + content[60:],
        lambda content: content[:-100],
    ],
    ids=["empty", "csv", "damaged", "half downloaded"],
)
def test_a_file_that_is_no_parquet_or_damaged(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "prompts.parquet"
    path.write_bytes(damage(written(path)))
    message = fails(path)
    assert message.startswith(f"{path}: corrupt, cut off, or no Parquet file (")
    assert message.endswith(f"). {REWRITE_IT}")


def test_another_table(tmp_path: Path) -> None:
    path = tmp_path / "prompts.parquet"
    assert fails(path).startswith(f"{path}: cannot read: no such file or directory. Run the stage that")
    written(path)
    assert fails(path, "scores") == f"{path}: must be the table scores/2, got the table prompts. Check the path."
    pq.write_table(prompts().replace_schema_metadata(None), path)
    assert fails(path).startswith(f"{path}: must be the table prompts/1, got a Parquet file that chunk-grpo")


def test_an_older_and_a_newer_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prompts.parquet"
    write_table(prompts(), path, "prompts")
    schema = SCHEMAS["prompts"]
    monkeypatch.setitem(SCHEMAS, "prompts", TableSchema("prompts", 3, schema.columns))
    assert fails(path) == (f"{path}: must be the table prompts/3, got the older version 1. {REWRITE_IT}")
    write_table(prompts(), path, "prompts")
    monkeypatch.undo()
    assert fails(path) == (
        f"{path}: must be the table prompts/1, got the newer version 3. "
        "Update chunk-grpo, or write the file again with this version (`dvc repro`)."
    )


def test_columns_that_changed_without_a_new_version(tmp_path: Path) -> None:
    path = tmp_path / "prompts.parquet"
    metadata = SCHEMAS["prompts"].metadata
    pq.write_table(prompts().drop_columns(["category"]).replace_schema_metadata(metadata), path)
    assert fails(path) == f"{path}: the columns of prompts/1 do not match; missing: category."
    number = prompts().set_column(2, "prompt", pa.array([1, 2]))
    pq.write_table(number.replace_schema_metadata(metadata), path)
    assert fails(path).startswith(f"{path}: column 'prompt' must be string in prompts/1, got int64.")
    null = prompts().set_column(2, "prompt", pa.array(["a", None]))
    pq.write_table(null.replace_schema_metadata(metadata), path)
    assert fails(path).startswith(f"{path}: row 1: column 'prompt' must have a value, got null.")


def test_a_csv_holds_no_formula(tmp_path: Path) -> None:
    texts = ["=HYPERLINK(1)", "+1", "-1", "@x", "\tx", "\r=1", "a=b", "'=1", "", None]
    write_csv(pa.table({"text": texts, "value": [float(-n) for n in range(len(texts))]}), tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["text"] for row in rows] == [f"'{text}" for text in texts[:6]] + ["a=b", "'=1", "", ""]
    assert [float(row["value"]) for row in rows] == [float(-n) for n in range(len(texts))]
