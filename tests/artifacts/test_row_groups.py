"""Tables with images: row groups of bounded bytes, so that any size is written in little memory and can be read."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chunk_grpo.artifacts import SCHEMAS, read_parts, read_table, table_from_rows, write_rows, write_table
from chunk_grpo.artifacts.schemas import IMAGE
from chunk_grpo.errors import DataError

MIB = 2**20
RANDOM = np.random.default_rng(0)


def image_row(number: int, size: int) -> dict[str, Any]:
    row = {"policy": "chunk", "mode": "tuned", "train_seed": 0, "prompt_id": f"eval-{number:05d}", "sample": 0}
    return row | {"seed": number, "image": {"bytes": RANDOM.bytes(size), "path": f"{number}.png"}}


def group_sizes(path: Path) -> list[int]:
    """The bytes of each row group, as they are in memory."""
    with pq.ParquetFile(path) as file:
        return [file.read_row_group(number).nbytes for number in range(file.num_row_groups)]


SIZES = [700, 10, 10, 900, 3000, 20, 600, 600, 600, 600]


def test_row_groups_hold_at_most_the_bound_or_one_row(tmp_path: Path) -> None:
    rows = [image_row(number, size) for number, size in enumerate(SIZES)]
    write_rows(iter(rows), tmp_path / "rows.parquet", "images", row_group_bytes=2000)
    write_table(table_from_rows(rows, "images"), tmp_path / "table.parquet", "images", row_group_bytes=2000)
    for name in ("rows.parquet", "table.parquet"):
        sizes = group_sizes(tmp_path / name)
        assert len(sizes) >= 4
        assert sum(size > 2200 for size in sizes) == 1  # the row of 3000 bytes; offsets come on top
        assert read_table(tmp_path / name, "images").to_pylist() == rows


def test_equal_rows_give_equal_bytes_however_they_come(tmp_path: Path) -> None:
    rows = [image_row(number, size) for number, size in enumerate(SIZES)]
    write_rows(rows, tmp_path / "a.parquet", "images", row_group_bytes=2000)
    write_rows((dict(row) for row in rows), tmp_path / "b.parquet", "images", row_group_bytes=2000)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    write_rows([], tmp_path / "none.parquet", "images")
    assert read_table(tmp_path / "none.parquet", "images").num_rows == 0
    write_rows(rows, tmp_path / "c.parquet", "images")
    write_table(table_from_rows(rows, "images"), tmp_path / "d.parquet", "images")
    assert (tmp_path / "c.parquet").read_bytes() == (tmp_path / "d.parquet").read_bytes()


def test_rows_are_on_the_disk_before_the_next_ones_are_made(tmp_path: Path) -> None:
    """Memory does not grow with the number of images."""
    path = tmp_path / "images.parquet"

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(40):
            (draft,) = tmp_path.glob(".images.parquet.*/images.parquet")
            assert draft.stat().st_size >= (number - 4) * 10_000
            yield image_row(number, 10_000)

    write_rows(rows(), path, "images", row_group_bytes=40_000)
    assert read_table(path, "images").num_rows == 40


def test_rows_that_fail_leave_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "images.parquet"
    write_rows([image_row(0, 10)], path, "images")
    before = path.read_bytes()

    def rows() -> Iterator[dict[str, Any]]:
        yield image_row(0, 10_000)
        raise DataError("the model gives NaN")

    with pytest.raises(DataError, match=r"^the model gives NaN$"):
        write_rows(rows(), path, "images", row_group_bytes=100)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["images.parquet"]


def test_a_table_is_read_part_by_part(tmp_path: Path) -> None:
    path = tmp_path / "images.parquet"
    rows = [image_row(number, size) for number, size in enumerate(SIZES)]
    write_rows(rows, path, "images", row_group_bytes=2000)
    parts = list(read_parts(path, "images"))
    assert [part.num_rows for part in parts] == [4, 1, 3, 2]
    assert [row for part in parts for row in part.to_pylist()] == rows
    assert all(part.nbytes < 2500 for part in parts if part.num_rows > 1)
    columns = ["seed", "mode"]
    assert all(part.column_names == columns for part in read_parts(path, "images", columns))
    write_rows([], path, "images")
    assert list(read_parts(path, "images")) == []


def test_a_part_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    """Memory does not grow with the number of images."""
    path = tmp_path / "images.parquet"
    write_rows((image_row(number, MIB) for number in range(40)), path, "images", row_group_bytes=2 * MIB)
    before = pa.total_allocated_bytes()
    parts = read_parts(path, "images")
    assert max(pa.total_allocated_bytes() - before for _ in parts) < 8 * MIB


def test_a_damaged_part_and_a_missing_value_are_named_when_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "images.parquet"
    write_rows([image_row(number, 1000) for number in range(10)], path, "images", row_group_bytes=2000)
    content = path.read_bytes()
    path.write_bytes(content[:5000] + bytes(200) + content[5200:])
    parts = read_parts(path, "images")
    assert next(parts).num_rows == 1
    with pytest.raises(DataError, match=r"corrupt, cut off, or no Parquet file \("):
        list(parts)
    table = table_from_rows([image_row(number, 10) for number in range(5)], "images")
    seeds = pa.array([0, 1, 2, None, 4])
    broken = table.set_column(table.column_names.index("seed"), "seed", seeds)
    pq.write_table(broken.replace_schema_metadata(SCHEMAS["images"].metadata), path, row_group_size=2)
    with pytest.raises(DataError, match=r"row 3: column 'seed' must have a value, got null\."):
        next(read_parts(path, "images"))
    images = [row["image"] for row in table.to_pylist()]
    images[3] = {"bytes": None, "path": "3.png"}
    broken = table.set_column(table.column_names.index("image"), "image", pa.array(images, IMAGE))
    pq.write_table(broken.replace_schema_metadata(SCHEMAS["images"].metadata), path, row_group_size=2)
    parts = read_parts(path, "images")
    assert next(parts).num_rows == 2
    with pytest.raises(DataError, match=r"row 3: column 'image' must have a value, got null\."):
        list(parts)


def test_a_whole_file_that_cannot_be_read_is_not_called_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "images.parquet"
    write_rows([image_row(0, 10)], path, "images")
    for error in (pa.ArrowNotImplementedError("chunked array outputs"), pa.ArrowMemoryError("malloc failed")):
        monkeypatch.setattr(pq.ParquetFile, "iter_batches", Mock(side_effect=error))
        with pytest.raises(DataError, match=rf"cannot be read here \({error}\), but need not be damaged."):
            read_table(path, "images")


LARGE = 130


def large_rows() -> Iterator[dict[str, Any]]:
    """More than 2 GiB, one row at a time."""
    return (image_row(number, 16 * MIB) for number in range(LARGE))


def written_by_us(path: Path) -> None:
    write_rows(large_rows(), path, "images")


def in_one_row_group(path: Path) -> None:
    """Write the table in one row group, as another program may."""
    table = pa.concat_tables(table_from_rows([row], "images") for row in large_rows())
    metadata = SCHEMAS["images"].metadata
    pq.write_table(table.replace_schema_metadata(metadata), path, use_dictionary=False)


@pytest.mark.slow
@pytest.mark.parametrize("write", [written_by_us, in_one_row_group])
def test_images_of_more_than_2_gib_are_read_back(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "images.parquet"
    write(path)
    assert path.stat().st_size > 2**31
    table = read_table(path, "images")
    path.unlink()  # pytest keeps the folders of three runs
    assert table["seed"].to_pylist() == list(range(LARGE))
    assert table["image"].nbytes > 2**31
