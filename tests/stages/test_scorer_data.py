"""Prompts without the data that a scorer needs are refused by prepare_prompts, before any model is loaded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Workspace, any_prompt, new_workspace, prompt_file
from tests.scorers.judge_cases import vlm_judge

ROWS = [f'a sign that says ""WORD {number}"",WORD {number}' for number in range(12)]
OCR = {"kind": "ocr", "splits": ["eval"], "batch_size": 8}
BAD_INPUT = 3


@pytest.fixture
def made(tmp_path: Path) -> Workspace:
    """The preset smoke, trained on the texts of a file's column `text`."""
    workspace = new_workspace(tmp_path)
    given = {"source": "file", "train_file": prompt_file("prompts.csv"), "wise_count": 0}
    given |= {"train_count": 8, "eval_count": 4}
    workspace.edit(any_prompt)
    workspace.edit(lambda raw: raw["prompts"].update(given))
    workspace.edit(lambda raw: raw.update(scorers={"signs": dict(OCR)}, rewards={"signs": 1.0}))
    write(tmp_path, ROWS)
    return workspace


def write(root: Path, rows: list[str], header: str = "prompt,text") -> None:
    quoted = [f'"{prompt}",{text}' for prompt, _, text in (row.rpartition(",") for row in rows)]
    (root / "prompts.csv").write_text("\n".join([header, *quoted]) + "\n")


def prepared(made: Workspace, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code of prepare_prompts, and its output."""
    assert made.run("inputs") == 0
    capfd.readouterr()
    code = made.run("prepare_prompts")
    return code, "".join(capfd.readouterr())


def test_complete_prompts_pass(made: Workspace, capfd: pytest.CaptureFixture[str]) -> None:
    assert prepared(made, capfd)[0] == 0


@pytest.mark.parametrize("split", ["train", "eval"])
def test_each_incomplete_prompt_is_named_with_file_and_line(
    made: Workspace, capfd: pytest.CaptureFixture[str], split: str
) -> None:
    """The scorer is trained on, so that a gap in either split counts; here only one split has one."""
    made.edit(lambda raw: raw["prompts"].update(eval_file=prompt_file("others.csv")))
    write(made.root, [row.replace("WORD", "other") for row in ROWS[:4]])
    (made.root / "prompts.csv").rename(made.root / "others.csv")
    write(made.root, ROWS[:8])
    name = {"train": "prompts.csv", "eval": "others.csv"}[split]
    path = made.root / name
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], lines[3].rpartition(",")[0] + ",", *lines[4:]]) + "\n")
    code, said = prepared(made, capfd)
    assert code == BAD_INPUT
    assert "scorers.signs: 1 prompt cannot be judged" in said
    assert f"{name}, line 4: field 'text' must be text, and not blank, got ''" in said


def test_a_column_that_is_not_there(made: Workspace, capfd: pytest.CaptureFixture[str]) -> None:
    write(made.root, ROWS, header="prompt,words")
    code, said = prepared(made, capfd)
    assert code == BAD_INPUT
    assert "scorers.signs: 12 prompts cannot be judged" in said
    assert "needs the field 'text' with the text to be shown, got 'words'" in said


def test_a_long_list_is_cut(made: Workspace, capfd: pytest.CaptureFixture[str]) -> None:
    made.edit(lambda raw: raw["prompts"].update(train_count=22))
    write(made.root, [f"sign {number},x" for number in range(26)], header="prompt,words")
    said = prepared(made, capfd)[1]
    assert "scorers.signs: 26 prompts cannot be judged" in said
    assert said.count("needs the field") == 20
    assert "and 6 more" in said


def test_prompts_outside_scorer_splits_need_no_data(made: Workspace, capfd: pytest.CaptureFixture[str]) -> None:
    """A scorer of a benchmark only; the other prompts have no text."""
    (made.root / "signs.csv").write_text("prompt,text\na sign,OPEN\n")
    write(made.root, ROWS, header="prompt,words")
    benchmark = {"kind": "file", "file": prompt_file("signs.csv"), "count": None}
    vivid = {"kind": "shapes-vivid", "splits": ["eval"], "batch_size": 8}
    made.edit(lambda raw: raw["prompts"].update(benchmarks={"signs": benchmark}))
    made.edit(lambda raw: raw["scorers"].update(signs=OCR | {"splits": ["signs"]}, vivid=vivid))
    made.edit(lambda raw: raw.update(rewards={"vivid": 1.0}))
    assert prepared(made, capfd)[0] == 0


def test_the_fields_of_a_judges_template(made: Workspace, capfd: pytest.CaptureFixture[str]) -> None:
    settings = vlm_judge("http://127.0.0.1:1/v1", made.root, template="{metadata.words}, {prompt}?").settings
    made.edit(lambda raw: raw["scorers"].update(signs=json.loads(settings.model_dump_json())))
    code, said = prepared(made, capfd)
    assert code == BAD_INPUT
    assert "scorers.signs: 12 prompts cannot be judged" in said
    assert "prompts.csv, line 2: needs the field 'words', which `template` asks for, got 'text'" in said
    write(made.root, ROWS, header="prompt,words")
    assert prepared(made, capfd)[0] == 0


@pytest.mark.parametrize(
    ("change", "changes"),
    [
        (lambda raw: raw["scorers"]["signs"].update(text_field=None), True),
        (lambda raw: raw["scorers"]["signs"].update(text_field="text"), False),  # as by default
        (lambda raw: raw["scorers"]["signs"].update(batch_size=2), False),
    ],
)
def test_prepare_prompts_depends_on_the_needs_alone(
    made: Workspace, change: Callable[[dict[str, Any]], None], changes: bool
) -> None:
    def record() -> bytes:
        assert made.run("inputs") == 0
        return made.files()["inputs/prompts.json"]

    before = record()
    made.edit(change)
    assert (record() != before) == changes
