"""Files appear whole or not at all, on a disk and in an object store."""

import errno
import os
import socket
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
from chunk_grpo.artifacts.storage import sizes_below
from chunk_grpo.errors import DataError, TransientError


def written(error: pytest.ExceptionInfo[DataError]) -> str:
    assert error.value.exit_code == 3
    return str(error.value)


def test_the_older_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text("older", path)
    with pytest.raises(ZeroDivisionError), output_file(path) as draft:
        draft.write_text("half")
        assert draft.suffix == ".txt"
        assert path.read_text() == "older"
        _ = 1 / 0
    assert path.read_text() == "older"
    write_text("new", path)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_has_the_users_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_text("", tmp_path / "ours")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("remote", [False, True])
def test_a_folder_replaces_an_older_one(remote: bool, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    target = join(request.getfixturevalue("bucket") if remote else tmp_path, "train", "chunk")
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
    assert folder.exists() is not remote
    with (
        pytest.raises(DataError, match=r"chunk/nowhere: cannot read: no such f"),
        input_dir(join(target, "nowhere")),
    ):
        pass


def write_to_a_full_disk(draft: Path) -> None:
    """Where the kernel has a device that is always full, its answer through pyarrow; else the same error."""
    if not Path("/dev/full").exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    draft.symlink_to("/dev/full")
    pq.write_table(pa.table({"x": list(range(100_000))}), draft)


def test_no_space_left_while_parquet_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with pytest.raises(DataError) as caught, output_file(path) as draft:
        write_to_a_full_disk(draft)
    assert written(caught) == (
        f"{path}: cannot write: no space left on the disk; nothing was changed. Make room and run again: "
        '"A full disk" in docs/operations.md has what may be deleted. Not with `dvc gc`: it removes results that '
        "published models and other runs need."
    )
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


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError) as caught:
        write_text("x", tmp_path / "file" / "a.txt")
    assert written(caught).startswith(f"{tmp_path}/file/a.txt: cannot write: ")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="folder: cannot write: Is a directory"):
        write_text("x", tmp_path / "folder")


def test_an_output_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel reports it to a user; root may write everywhere."""

    def denied(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(DataError) as caught:
        write_text("x", tmp_path / "runs" / "a.txt")
    assert written(caught) == (
        f"{tmp_path}/runs/a.txt: cannot write: no permission "
        f"([Errno 13] Permission denied: '{tmp_path}/runs'). "
        "Change the owner or the mode, the S3 policy or keys, or the path."
    )


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


def test_s3_keeps_what_is_written(bucket: str) -> None:
    write_text("ä", f"{bucket}/run/a.txt")
    write_text("ö", f"{bucket}/run/a.txt")
    assert read_text(f"{bucket}/run/a.txt") == "ö"
    assert find_files(f"{bucket}/run", "*.txt") == [f"{bucket}/run/a.txt"]


def test_s3_shows_nothing_of_a_failed_write(bucket: str) -> None:
    with pytest.raises(ZeroDivisionError), output_file(f"{bucket}/a.txt") as draft:
        draft.write_text("half")
        _ = 1 / 0
    with pytest.raises(DataError) as caught:
        read_text(f"{bucket}/a.txt")
    assert written(caught) == (
        f"{bucket}/a.txt: cannot read: no such file. Run the stage that writes it (`dvc repro`), "
        "or fix the path."
    )


def test_s3_without_credentials(no_credentials: None) -> None:
    message = (
        "s3://nobody/a.txt: cannot {}: no S3 credentials (Unable to locate credentials). Set "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run `aws configure`."
    )
    with pytest.raises(DataError) as caught:
        read_text("s3://nobody/a.txt")
    assert written(caught) == message.format("read")
    with pytest.raises(DataError) as caught:
        write_text("x", "s3://nobody/a.txt")
    assert written(caught) == message.format("write")


def test_s3_that_does_not_answer_is_worth_another_try(
    s3_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{probe.getsockname()[1]}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        with pytest.raises(TransientError) as caught:
            write_text("x", "s3://bucket/a.txt")
    assert caught.value.exit_code == 75
    assert "s3://bucket/a.txt: cannot write: the object store does not answer" in str(caught.value)


def test_a_scheme_that_is_not_known() -> None:
    with pytest.raises(DataError) as caught, input_file("nosuch://bucket/a"):
        pass
    assert written(caught) == "nosuch://bucket/a: unknown protocol 'nosuch'. Use a path or an s3:// URL."
