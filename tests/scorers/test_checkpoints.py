"""Search paths of a scorer's files, and the messages for missing ones."""

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from chunk_grpo.config.scorer_settings import Weights
from chunk_grpo.errors import DataError, Stopped
from chunk_grpo.scorers.running.checkpoints import find_checkpoint

FILES = ("config.json", "*.safetensors|pytorch_model.bin")


def find(checkpoint: Path | str, revision: str | None = None) -> Path:
    return find_checkpoint("scorers.clip.model", Weights(checkpoint=str(checkpoint), revision=revision), FILES)


def test_a_folder_with_every_file_is_taken_as_it_is(tmp_path):
    (tmp_path / "config.json").touch()
    (tmp_path / "pytorch_model.bin").touch()
    assert find(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("checkpoint", "revision", "said"),
    [
        ("", "v2", r"\.revision: must be null for the folder .*, got 'v2'"),
        ("", None, r": no file \*\.safetensors or pytorch_model\.bin in .*, which holds config\.json"),
        ("./clip", None, r"\.checkpoint: the folder \./clip does not exist"),
        ("models/clip/large", None, r"\.checkpoint: the folder models/clip/large does not exist"),
        ("my model", None, r"\.checkpoint: 'my model' is neither a local folder nor"),
    ],
)
def test_rejects_invalid_checkpoint_without_hub_access(tmp_path, checkpoint, revision, said):
    (tmp_path / "config.json").touch()
    with pytest.raises(DataError, match=rf"^scorers\.clip\.model{said}"):
        find(checkpoint or tmp_path, revision)


class ConnectTimeout(Exception):  # noqa: N818
    """Error like a network library's: not an OSError, and without a message."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LocalEntryNotFoundError("not in the cache\nor so"), "LocalEntryNotFoundError: not in the cache"),
        (ConnectTimeout(""), "ConnectTimeout"),
    ],
)
def test_offline_error_explains_how_to_get_hub_model(error, said, monkeypatch):
    def nothing_kept(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("not in the cache")

    def away(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", nothing_kept)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", away)
    how = "`hf download openai/clip --revision abc --local-dir FOLDER`"
    with pytest.raises(DataError, match=rf"openai/clip \(revision abc\) is no folder here.*\({said}\)\. .*{how}"):
        find("openai/clip", "abc")


def test_a_signal_while_it_downloads_comes_through(monkeypatch):
    def stopped(*_: object, **__: object) -> None:
        raise Stopped("stopped by SIGTERM")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", stopped)
    with pytest.raises(Stopped, match="stopped"):
        find("openai/clip")


class Hub:
    """A hub with one repository; its cache is empty until something is downloaded."""

    def __init__(self, files: list[str], folder: Path) -> None:
        self.files, self.folder, self.asked, self.kept = files, folder, list[list[str]](), False

    def list_repo_files(self, repository: str, revision: str | None) -> list[str]:
        assert (repository, revision) == ("openai/clip", "abc")
        return self.files

    def snapshot_download(
        self, repository: str, revision: str | None, allow_patterns: list[str], local_files_only: bool = False
    ) -> str:
        assert (repository, revision) == ("openai/clip", "abc")
        if local_files_only and not self.kept:
            raise LocalEntryNotFoundError("not in the cache")
        if local_files_only:
            return str(self.folder)
        self.asked.append(allow_patterns)
        self.kept = True
        for name in self.files:
            if any(Path(name).match(pattern) for pattern in allow_patterns):
                (self.folder / name).touch()
        return str(self.folder)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (["config.json", "model.safetensors", "pytorch_model.bin"], ["config.json", "*.safetensors"]),
        (["config.json", "pytorch_model.bin", "README.md"], ["config.json", "pytorch_model.bin"]),
    ],
)
def test_downloads_only_one_of_two_formats(files, wanted, tmp_path, monkeypatch):
    hub = Hub(files, tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", hub.list_repo_files)
    assert find("openai/clip", "abc") == tmp_path
    assert hub.asked == [wanted]
    assert find("openai/clip", "abc") == tmp_path
    assert len(hub.asked) == 1  # from the cache
    (tmp_path / "config.json").unlink()
    assert find("openai/clip", "abc") == tmp_path
    assert len(hub.asked) == 2  # a cache that lacks a file is filled
