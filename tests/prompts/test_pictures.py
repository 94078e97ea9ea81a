"""Pictures that prompts edit: each bad row is named with file, line and reason."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chunk_grpo.config.prompts import PromptChecks, PromptFile
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.pictures import check_pictures
from chunk_grpo.prompts.read import read_prompt_file
from chunk_grpo.prompts.rows import CheckedPrompts

RULES = PromptChecks()


def picture(path: Path, width: int, height: int, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((height, width, 3), dtype=np.uint8)).convert(mode).save(path)


def read(folder: Path, *rows: str, rules: PromptChecks = RULES) -> CheckedPrompts:
    (folder / "edits.csv").write_text("\n".join(["prompt,source,kind", *rows]) + "\n")
    file = PromptFile(path=str(folder / "edits.csv"), picture_field="source")
    checked = read_prompt_file(file, rules, "prompts.train_file")
    return check_pictures(checked, folder, (40, 60), rules)


def refused(folder: Path, *rows: str) -> str:
    with pytest.raises(DataError) as caught:
        read(folder, *rows)
    return str(caught.value).removeprefix(f"{folder}/edits.csv, ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "set"
    for name, width, height in (("a", 60, 40), ("b", 121, 80), ("wide", 63, 40)):
        picture(found / "in" / f"{name}.png", width, height)
    return found


def test_a_prompt_gets_the_path_of_its_picture_and_scorers_the_other_columns(folder: Path) -> None:
    found = read(folder, "make it red,in/a.png,x", "make it red,in/b.png,y", "remove it,in/a.png,x")
    assert [(row.text, row.picture, row.metadata) for row in found.rows] == [
        ("make it red", str(folder / "in/a.png"), {"kind": "x"}),
        ("make it red", str(folder / "in/b.png"), {"kind": "y"}),
        ("remove it", str(folder / "in/a.png"), {"kind": "x"}),
    ]


def test_a_prompt_repeats_only_with_its_picture(folder: Path) -> None:
    found = read(folder, "make it red,in/a.png,x", "make it red,in/a.png,y", "make it red,in/b.png,y")
    assert [row.line for row in found.rows] == [2, 4]


def outside(folder: Path) -> str:
    picture(folder.parent / "out.png", 60, 40)
    (folder / "in" / "link.png").symlink_to(folder.parent / "out.png")
    return "in/link.png"


def transparent(folder: Path) -> str:
    Image.new("RGBA", (60, 40)).save(folder / "in" / "clear.png")
    return "in/clear.png"


def damaged(folder: Path) -> str:
    (folder / "in" / "cut.png").write_bytes((folder / "in" / "a.png").read_bytes()[:20])
    return "in/cut.png"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: "in/c.png", "names the picture 'in/c.png', which is no file in {folder}"),
        (lambda folder: "in", "names the picture 'in', which is no file in {folder}"),
        (lambda folder: "../set/in/a.png", "must name images inside {folder}, got '../set/in/a.png'"),
        (lambda folder: str(folder / "in" / "a.png"), "must name images inside {folder}, got "),
        (outside, "must name images inside {folder}, got 'in/link.png'"),
        (transparent, "image {folder}/in/clear.png: not a readable picture (must be opaque"),
        (damaged, "image {folder}/in/cut.png: "),
        (lambda folder: "", "'source' must be the path of a picture, got ''"),
    ],
)
def test_a_row_without_a_readable_picture_is_named(make: Callable[[Path], str], said: str, folder: Path) -> None:
    name = make(folder)
    message = refused(folder, "make it red,in/a.png,x", f"make it blue,{name},x")
    assert message.startswith("line 3: ")
    assert said.format(folder=folder) in message
    assert message.endswith("Fix the file, or a copy of it, or set `prompts.checks.records: drop`.")
    rules = RULES.model_copy(update={"records": "drop"})
    kept = read(folder, "make it red,in/a.png,x", f"make it blue,{name},x", rules=rules)
    assert [row.line for row in kept.rows] == [2]


def test_another_ratio_is_refused_dropped_or_cropped(folder: Path) -> None:
    """121 : 80 is within 2 % of 3 : 2, and 63 : 40 is not."""
    rows = ("make it red,in/wide.png,x", "make it red,in/b.png,x")
    message = refused(folder, *rows)
    assert message == (
        "line 2: in/wide.png has 63 x 40 pixels, another ratio than the images' 60 x 40. Fix the file, or a copy of "
        "it, or set `prompts.checks.pictures: crop` or `drop`."
    )
    for action, lines in (("drop", [3]), ("crop", [2, 3])):
        found = read(folder, *rows, rules=RULES.model_copy(update={"pictures": action}))
        assert [row.line for row in found.rows] == lines
        assert [(each.what, each.action) for each in found.report.findings] == [("pictures of another ratio", action)]


def test_all_dropped_is_an_error(folder: Path) -> None:
    with pytest.raises(DataError, match=r"must hold prompts with pictures, got 1, all dropped\n.*wide\.png"):
        read(folder, "a,in/wide.png,x", rules=RULES.model_copy(update={"pictures": "drop"}))


def test_a_file_without_the_column_is_named(folder: Path) -> None:
    (folder / "edits.csv").write_text("prompt,picture\na,in/a.png\n")
    file = PromptFile(path=str(folder / "edits.csv"), picture_field="source")
    with pytest.raises(DataError, match=r"'source', got none among .*`prompts\.train_file\.picture_field`"):
        read_prompt_file(file, RULES, "prompts.train_file")


def test_an_edited_picture_changes_the_record_of_the_prompts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chunk_grpo.config import load_params
    from chunk_grpo.digests import Digests
    from chunk_grpo.prompts.recorded import prompt_records

    read(folder, "make it red,in/a.png,x")
    params = load_params("params.yaml")
    file = PromptFile(path=str(folder / "edits.csv"), picture_field="source")
    prompts = params.prompts.model_copy(update={"source": "file", "train_file": file})
    edited = params.model_copy(update={"prompts": prompts})
    memory = folder.parent / "memory"
    before = prompt_records(edited, Digests(memory))
    picture(folder / "in" / "a.png", 60, 40, "L")
    os.utime(folder / "in" / "a.png", (1, 1))
    assert prompt_records(edited, Digests(memory)) != before
    assert set(before["pictures of prompts.train_file"]) == {"in/a.png"}
