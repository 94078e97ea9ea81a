"""The original evaluator's folders and results; tests/scorers/test_geneval_original.py runs it on them."""

import json
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.geneval.folders import read_results, write_prompt_folder

RECORD = {"tag": "colors", "include": [{"class": "cat", "count": 1, "color": "red"}], "prompt": "a photo of a red cat"}


def test_pictures_of_another_run_are_not_mixed_in(tmp_path):
    write_prompt_folder(tmp_path, 0, RECORD, [b"1", b"2"])
    with pytest.raises(DataError, match="00000: exists already"):
        write_prompt_folder(tmp_path, 0, RECORD, [b"1"])


def test_records_are_checked(tmp_path):
    with pytest.raises(
        DataError, match=r"^record of prompt 0: must be one of GenEval.s, with prompt; choose the split"
    ):
        write_prompt_folder(tmp_path, 0, {"tag": "colors"}, [])


LINE: dict[str, Any] = {
    "filename": "images/00012/samples/0003.png",
    "tag": "colors",
    "prompt": "a photo of a red cat",
    "correct": False,
    "reason": "expected cat>=1, found 0",
    "metadata": json.dumps(RECORD),
    "details": "{}",
}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{json.dumps(line) if isinstance(line, dict) else line}\n" for line in lines))
    return path


def test_results_in_the_order_of_prompts_and_samples(tmp_path):
    names = ["images/00012/samples/0000.png", "images/00002/samples/0001.png"]
    path = write(tmp_path / "results.jsonl", LINE, "", *(LINE | {"filename": name} for name in names))
    results = read_results(path)
    assert [(result.prompt_number, result.sample) for result in results] == [(2, 1), (12, 0), (12, 3)]
    kept = ("filename", "tag", "prompt", "correct", "reason")
    assert results[2].model_dump() == {key: LINE[key] for key in kept} | {"metadata": RECORD}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":2: no result of GenEval's evaluator: "),
        ({**LINE, "correct": "yes"}, ":2: no result of GenEval's evaluator: correct: .*, got 'yes'$"),
        ({**LINE, "tag": "spelling"}, ":2: no result of GenEval's evaluator: tag: .*, got 'spelling'$"),
        ({**LINE, "metadata": "{"}, ":2: no result of GenEval's evaluator: metadata: Invalid JSON"),
        ({**LINE, "filename": "a/b/c.png"}, ":2: no result of GenEval's evaluator: filename: .*, got 'a/b/c.png'$"),
        (LINE, ":2: a second result for sample 3 of prompt 12"),
    ],
)
def test_other_lines_are_refused(tmp_path, line, message):
    path = write(tmp_path / "results.jsonl", LINE, line)
    with pytest.raises(DataError, match=message):
        read_results(path)


def test_no_file(tmp_path):
    with pytest.raises(DataError, match="cannot be read as results"):
        read_results(tmp_path / "results.jsonl")
