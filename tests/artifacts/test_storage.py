"""Files appear whole or not at all, on a disk and in an object store."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError

from chunk_grpo.artifacts import (
    find_files,
    input_dir,
    input_file,
    join,
    output_dir,
    output_file,
    read_json,
    read_text,
    write_bytes,
    write_csv,
    write_json,
    write_text,
)
from chunk_grpo.artifacts.storage import sizes_below, storage_errors
from chunk_grpo.errors import DataError, TransientError


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder, and a bucket of a real S3 server."""
    return str(tmp_path if request.param == "folder" else request.getfixturevalue("bucket"))


def test_the_older_file_stays_until_the_new_one_is_whole(place: str, tmp_path: Path) -> None:
    path = join(place, "a.txt")
    for older in (None, "ä"):
        with pytest.raises(ZeroDivisionError), output_file(path) as draft:
            draft.write_text("half")
            assert draft.suffix == ".txt"
            _ = 1 / 0
        if older is None:
            with pytest.raises(DataError, match=r"a\.txt: cannot read: no such file.*\. Run the stage that"):
                read_text(path)
        else:
            assert read_text(path) == older
        write_text("ä", path)
    write_text("ö", path)
    assert read_text(path) == "ö"
    assert find_files(place, "*.txt") == [path]
    (tmp_path / "plain").write_text("")
    write_text("", tmp_path / "ours")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_replaces_an_older_one(place: str) -> None:
    target = join(place, "train", "chunk")
    for name in ("old.txt", "new.txt"):
        with output_dir(target) as draft:
            (draft / "seed-0").mkdir()
            (draft / "seed-0" / name).write_text(name)
    with pytest.raises(ZeroDivisionError), output_dir(target) as draft:
        _ = 1 / 0
    assert sizes_below(target) == {"seed-0/new.txt": 7}
    with input_dir(target) as folder:
        assert [path.relative_to(folder).as_posix() for path in folder.rglob("*.txt")] == ["seed-0/new.txt"]
        assert (folder / "seed-0" / "new.txt").read_text() == "new.txt"
    assert folder.exists() is ("://" not in place)
    with pytest.raises(DataError, match=r"chunk/nowhere: cannot read: no such f"), input_dir(join(target, "nowhere")):
        pass


def write_to_a_full_disk(draft: Path) -> None:
    """Raise the error of a full disk: the kernel's /dev/full through pyarrow, or the same error by hand."""
    if not Path("/dev/full").exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    draft.symlink_to("/dev/full")
    pq.write_table(pa.table({"x": list(range(100_000))}), draft)


def test_no_space_left_while_parquet_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with pytest.raises(DataError) as caught, output_file(path) as draft:
        write_to_a_full_disk(draft)
    said = str(caught.value)
    assert said.startswith(f"{path}: cannot write: no space left on the disk; nothing was changed. Make")
    assert list(tmp_path.iterdir()) == []


def test_no_space_left_at_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    write_text("older", path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="no space left on the disk; nothing was changed"):
        write_text("new", path)
    assert path.read_text() == "older"


def test_an_output_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError) as caught:
        write_text("x", tmp_path / "file" / "a.txt")
    assert (caught.value.exit_code, str(caught.value).partition("write: ")[0]) == (3, f"{tmp_path}/file/a.txt: cannot ")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="folder: cannot write: Is a directory"):
        write_text("x", tmp_path / "folder")
    # As the kernel reports it to a user; root may write everywhere.
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "runs")
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=denied))
    with pytest.raises(DataError, match=r"runs/a.txt: cannot write: no permission .*\. Change the owner or"):
        write_text("x", tmp_path / "runs" / "a.txt")


def test_text_json_and_csv(tmp_path: Path) -> None:
    write_json({"a": [1, None], "b": "ü"}, tmp_path / "a.json")
    assert read_json(tmp_path / "a.json") == {"a": [1, None], "b": "ü"}
    write_csv(pa.table({"step": [0, 1], "name": ["a", "b,c"]}), tmp_path / "a.csv")
    assert read_text(tmp_path / "a.csv") == '"step","name"\n0,"a"\n1,"b,c"\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(float("nan"), tmp_path / "a.json")


def test_text_that_is_not_utf8_and_text_that_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    write_bytes(b"a red circle\na gr\xfcn square\n", path)
    with pytest.raises(DataError) as caught:
        read_text(path)
    assert str(caught.value) == f"{path}, line 2: must be UTF-8, got the byte 0xfc. Save the file as UTF-8."
    write_text('{"a": 1,\n', path)
    with pytest.raises(DataError, match=r"prompts\.txt, line 2: corrupt or no JSON"):
        read_json(path)


def test_find_files_lists_them_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b/y.parquet", "a/x.parquet", "a/x.csv"):
        write_text("", f"scores/{name}")
    Path("scores/b/link.parquet").symlink_to("y.parquet")  # as DVC may link to its cache
    (tmp_path / "scores" / "c" / "folder.parquet").mkdir(parents=True)
    found = ["scores/a/x.parquet", "scores/b/link.parquet", "scores/b/y.parquet"]
    assert find_files("scores", "*/*.parquet") == found
    with pytest.raises(DataError, match=r"scores: cannot read: no file matches \*\.png\. Run the stage"):
        find_files("scores", "*.png")


def test_s3_without_credentials(no_credentials: None) -> None:
    for action, what in (
        (lambda: read_text("s3://nobody/a"), "read"),
        (lambda: write_text("x", "s3://nobody/a"), "write"),
    ):
        with pytest.raises(DataError, match=rf"^s3://nobody/a: cannot {what}: no S3 credentials"):
            action()


def test_s3_that_does_not_answer_is_worth_another_try(s3_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{probe.getsockname()[1]}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        with pytest.raises(TransientError) as caught:
            write_text("x", "s3://bucket/a.txt")
    assert caught.value.exit_code == 75
    assert "s3://bucket/a.txt: cannot write: the object store does not answer" in str(caught.value)


@pytest.mark.parametrize("kind", [ReadTimeoutError, ConnectTimeoutError, EndpointConnectionError])
def test_time_outs_of_the_object_store_may_pass(kind: Callable[..., Exception]) -> None:
    """Some of them are OSErrors, some are not."""
    with (
        pytest.raises(TransientError, match=r"^s3://a/b: cannot write: the object store does not answer"),
        storage_errors("write", "s3://a/b"),
    ):
        raise kind(endpoint_url="http://127.0.0.1:1", error="none")


def test_a_scheme_that_is_not_known() -> None:
    with (
        pytest.raises(DataError, match=r"^nosuch://bucket/a: unknown protocol 'nosuch'"),
        input_file("nosuch://bucket/a"),
    ):
        pass
