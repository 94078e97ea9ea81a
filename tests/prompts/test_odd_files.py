"""What stands where a file of prompts should: the message says what it is, and nothing hangs."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chunk_grpo.errors import DataError
from chunk_grpo.prompts import PromptSource, read_prompt_file
from tests.prompts.policies import LENIENT, STRICT

Make = Callable[[Path], object]


def refused(path: Path | str) -> str:
    with pytest.raises(DataError) as caught:
        read_prompt_file(PromptSource(path), STRICT)
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("name", ["p.txt", "p.parquet"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(
            Path.mkdir,
            "a folder, but a file is needed. Name a file in it; for a data set on the hub, set `hub_file`.",
            id="folder",
        ),
        pytest.param(
            os.mkfifo, "not a regular file, but a pipe or a device. Save its content in a file.", id="pipe"
        ),
        pytest.param(
            lambda path: path.symlink_to(path),
            "a link to itself or to a missing file. Fix the link or the path.",
            id="link to itself",
        ),
        pytest.param(
            lambda path: path.symlink_to(path.with_name("gone")),
            "a link to itself or to a missing file. Fix the link or the path.",
            id="link to nothing",
        ),
    ],
)
def test_what_is_no_file_is_named(make: Make, message: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    make(path)
    assert refused(path) == message


def test_a_tilde_is_no_home() -> None:
    assert refused("~/prompts.txt") == "no such file: ~ is not expanded. Write the whole path."


def test_a_line_without_end_is_refused_before_it_reaches_a_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("a cat\n" + "x" * 10_001 + "\n" + "y" * 10_000 + "\n")
    with pytest.raises(DataError) as caught:
        read_prompt_file(PromptSource(path), LENIENT)
    header, line, last = str(caught.value).splitlines()
    assert header == f"{path}: 1 problem (longer than 10,000 characters: 1)"
    assert line.startswith(
        "  line 2: must have at most 10,000 characters, got 10,001; is a line end missing? 'xxxx"
    )
    assert last == "Fix the file, or a copy of it."
