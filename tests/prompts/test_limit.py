"""Only the beginning of a file is read: what stands before the limit counts, what stands after it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunk_grpo.prompts import PromptSource, read_prompt_file
from tests.prompts.files import read, refused, write
from tests.prompts.policies import STRICT


def test_the_first_ones_are_read_and_the_rest_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "p.txt", "a cat\na dog\na cow\n")
    found = read_prompt_file(PromptSource(path, limit=2), STRICT)
    assert [row.text for row in found.rows] == ["a cat", "a dog"]
    assert found.report.notes == (f"{path}: read up to the limit of 2; there is more",)
    assert read_prompt_file(PromptSource(path, limit=3), STRICT).report.notes == ()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.txt", b"a\nb\n\nc\xff\nb\n"),
        ("p.csv", b'prompt\na\n"b"\nc,d\n\xff\n'),
        ("p.jsonl", b'"a"\n"b"\n{\n"\xff"\n'),
        ("p.json", b'["a",\n"b",\n{\n"x',),
    ],
)  # fmt: skip
def test_what_is_wrong_after_it_does_not_count(name: str, content: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / name, content)
    assert read(path, limit=2) == ["a", "b"]
    assert "problem" in refused(path)


def test_a_record_that_cannot_be_read_is_one_of_them(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", '"a"\n{\n"b"\n"b"\n')
    assert "1 problem (no JSON: 1)" in refused(path, limit=2)
    assert "2 problems (no JSON: 1, duplicates: 1)" in refused(path, limit=4)


def test_records_before_it_count_although_the_rest_stands_on_their_line(tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", b'[{"prompt": "a cat"}, {"text": "lost"}, {"prompt": "c\xe9"}, "d", {]')
    message = refused(path, limit=3)
    assert "2 problems (wrong encoding: 1, no prompt: 1)" in message
    assert "line 1: must be UTF-8, got the byte 0xe9 at character 54" in message
    assert "line 1: needs one field `prompt` with the prompt, got none among the fields 'text'" in message
    assert read(path, limit=1) == ["a cat"]
    message = refused(path, limit=2)
    assert "1 problem (no prompt: 1)" in message
    assert "0xe9" not in message


@pytest.mark.parametrize(
    "content", ['["a", "b", {]', '["a", "b" "c"]', '["a", "b"', '["a",\n"b", {\n"c": ]', '["a", "b", "c" "d"]']
)  # fmt: skip
def test_what_is_wrong_after_it_on_the_same_line_does_not_count(content: str, tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", content)
    assert read(path, limit=2) == ["a", "b"]
    assert "1 problem (no JSON: 1)" in refused(path)


def test_a_category_before_it_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", '[{"prompt": "a", "category": "\\u0007"}, "b"]')
    assert "control characters: 1" in refused(path, limit=1)
