"""chunk_grpo/digests.py: content is seen, and read again only when something about the file has changed."""

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from chunk_grpo import digests
from chunk_grpo.digests import Digests
from chunk_grpo.errors import DataError


def settled(path: Path, content: str) -> Path:
    """A file that was written a while ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    os.utime(path, (1000, 1000))
    return path


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(digests, "_SETTLED_SECONDS", -1.0)  # as if the files were old: ctime cannot be set
    return tmp_path / ".inputs" / "digests.json"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read."""
    names: list[str] = []
    whole = digests._sha256

    def counted(path: Path) -> str:
        names.append(path.name)
        return whole(path)

    monkeypatch.setattr(digests, "_sha256", counted)
    return names


def learn(memory: Path, path: Path) -> str | None:
    known = Digests(memory)
    found = known.of(path)
    known.save()
    return found


def test_an_unchanged_file_is_read_once(memory: Path, tmp_path: Path, read: list[str]) -> None:
    file = settled(tmp_path / "a.txt", "red")
    assert learn(memory, file) == learn(memory, file)
    assert read == ["a.txt"]


def test_content_of_the_same_length_and_time_is_seen(memory: Path, tmp_path: Path) -> None:
    before = learn(memory, settled(tmp_path / "a.txt", "red"))
    assert learn(memory, settled(tmp_path / "a.txt", "sky")) != before
    assert learn(memory, settled(tmp_path / "a.txt", "red")) == before


def test_recently_changed_file_is_not_cached(tmp_path: Path, read: list[str]) -> None:
    (tmp_path / "a.txt").write_text("red")
    for _ in range(2):
        learn(tmp_path / "memory.json", tmp_path / "a.txt")
    assert read == ["a.txt", "a.txt"]


def test_a_folder_has_the_names_and_contents_of_its_files(memory: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        settled(folder / "a.txt", "red")
        settled(folder / "in" / "b.txt", "blue")
    same = Digests(memory).of(one)
    assert Digests(memory).of(tmp_path / "no") is None
    assert Digests(memory).of(other) == same
    settled(other / ".hidden", "x")
    settled(other / "__pycache__" / "x.pyc", "x")
    assert Digests(memory).of(other) == same
    (other / "in" / "b.txt").rename(other / "in" / "c.txt")
    assert Digests(memory).of(other) != same


@pytest.mark.parametrize("content", ["", "[]"])
def test_damaged_cache_is_rebuilt(content: str, memory: Path, tmp_path: Path) -> None:
    file = settled(tmp_path / "a.txt", "red")
    found = learn(memory, file)
    memory.write_text(content)
    assert learn(memory, file) == found
    assert learn(memory, file) == found


def test_deleted_file_leaves_the_cache(memory: Path, tmp_path: Path) -> None:
    gone = settled(tmp_path / "gone.txt", "red")
    learn(memory, gone)
    gone.unlink()
    learn(memory, settled(tmp_path / "a.txt", "red"))
    assert "gone.txt" not in memory.read_text()


def test_a_file_that_cannot_be_read_is_named(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "_sha256", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(DataError, match=r"a\.txt: cannot be read \(Permission denied\)"):
        Digests(memory).of(settled(tmp_path / "a.txt", "red"))


@pytest.mark.parametrize("name", ["signs.txt", "sets/signs.txt", "a.b/signs"])
def test_missing_dvc_file_error_names_next_step(name, memory, tmp_path, monkeypatch):
    """A copy of a checkout, as of `dvc exp run --temp`, has the .dvc file alone."""
    monkeypatch.chdir(tmp_path)
    assert Digests(memory).of(name) is None
    tracked = name.partition("/")[0]
    Path(f"{tracked}.dvc").touch()
    with pytest.raises(DataError) as caught:
        Digests(memory).of(name)
    message = f"{name}: no such file, but {tracked}.dvc tracks it. In a checkout run `dvc checkout {tracked}.dvc`"
    assert str(caught.value).startswith(message)
    assert f"`--copy-paths {tracked}`" in str(caught.value)
    settled(Path(name), "a red circle")
    assert Digests(memory).of(name) is not None
