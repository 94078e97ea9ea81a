"""Files of data sets on the hub: from the cache without a network, or an error that says how to get them."""

import json
import sys
from pathlib import Path

import pytest

from chunk_grpo.errors import ConfigError
from tests.prompts.files import checked, refused


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's, and no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


def test_a_file_in_the_cache_is_read_offline(cache: Path) -> None:
    folder = cache / "datasets--ann--prompts"
    (folder / "refs").mkdir(parents=True)
    for name, commit, text in (("main", "0" * 40, "a cat"), ("v2", "1" * 40, "a dog")):
        (folder / "snapshots" / commit / "data").mkdir(parents=True)
        (folder / "refs" / name).write_text(commit)
        (folder / "snapshots" / commit / "data" / "test.json").write_text(json.dumps([text]))
    found = checked("ann/prompts", hub_file="data/test.json")
    assert [(row.text, row.source) for row in found.rows] == [("a cat", "ann/prompts/data/test.json")]
    found = checked("ann/prompts", hub_file="data/test.json", revision="v2")
    assert [(row.text, row.source) for row in found.rows] == [("a dog", "ann/prompts/data/test.json@v2")]


def test_offline_it_says_how_to_get_the_file(cache: Path) -> None:
    message = refused("ann/prompts", hub_file="test.json", revision="v2")
    assert message.startswith("the file test.json (revision v2) is not in the hub's cache and could not be ")
    assert message.endswith(
        "`hf download ann/prompts test.json --repo-type dataset --revision v2 --local-dir FOLDER`; then give "
        "FOLDER/test.json as the path, without a revision."
    )
    assert "HFValidationError" in refused("ann/prompts/more", hub_file="test.json")
    assert "name the file to read by `hub_file`" in refused("ann/prompts")


def test_a_download_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    class ReadTimeoutError(Exception):
        """Of the network library, which changes with huggingface_hub: httpx, httpx2."""

    def broken(*args: object, **settings: object) -> str:
        raise ReadTimeoutError("no answer\nfrom there")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", broken)
    assert "could not be downloaded (ReadTimeoutError: no answer)" in refused("ann/prompts", hub_file="test.json")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"pip install -e .*\[training\]"):
        checked("ann/prompts", hub_file="test.json")


def test_a_missing_column_is_named_with_repository_and_file(cache: Path) -> None:
    folder = cache / "datasets--ann--prompts"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (folder / "snapshots" / ("0" * 40) / "train.csv").write_text("caption\na cat\n")
    message = refused("ann/prompts", hub_file="train.csv", prompt_field="text")
    assert message.startswith("/train.csv, line 1: needs one field 'text' with the prompt, got none among the fields")
