"""DPG-Bench's file, with texts of our own."""

from pathlib import Path

import pytest

from chunk_grpo.config.questions import parse_questions
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.dpg import read_dpg
from tests.prompts.files import LENIENT, STRICT

HEADER = (
    "item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple,question_natural_language"
)


def line(
    item: str, number: object, parents: str = "0", text: str = "a red cup", question: str = "Is there a cup?"
) -> str:
    return f'{item},{text},,{number},"{parents}",entity,whole,"entity - whole (cup, 1)",{question}'


def write(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "dpg_bench.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_a_prompt_has_the_questions_of_its_rows(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        line("a1", 1),
        line("a1", 2, "1", question="Is the cup red?"),
        line("a1", 3, "1, 2", question='"Is it, in short, red?"'),
        line("b", 1, text="a dog"),
    )
    read = read_dpg(path, STRICT)
    first, second = read.rows
    assert [(row.text, row.line, row.metadata["item_id"]) for row in read.rows] == [
        ("a red cup", 2, "a1"),
        ("a dog", 5, "b"),
    ]
    assert first.metadata["questions"] == [
        {"id": 1, "question": "Is there a cup?", "parents": [], "category": "entity - whole"},
        {"id": 2, "question": "Is the cup red?", "parents": [1], "category": "entity - whole"},
        {"id": 3, "question": "Is it, in short, red?", "parents": [1, 2], "category": "entity - whole"},
    ]
    assert len(parse_questions(second.metadata)) == 1
    assert read.report.lines()[-1] == f"{path}: 2 of DPG-Bench's 1,065 prompts"


def test_the_first_prompts_and_equal_ones(tmp_path: Path) -> None:
    path = write(tmp_path, *(line(item, 1) for item in "abc"))
    assert [row.metadata["item_id"] for row in read_dpg(path, LENIENT, count=2).rows] == ["a", "b"]


def test_all_prompts_need_no_note(tmp_path: Path) -> None:
    path = write(tmp_path, *(line(f"i{number}", 1, text=f"cup {number}") for number in range(1065)))
    assert not read_dpg(path, STRICT).report.notes


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([line("a", "x")], "line 2: proposition_id must be a whole number, got 'x'"),
        ([line("a", 1, "")], "line 2: dependency must be a whole number, got ''"),
        ([line("a", 1, "1;2")], "line 2: dependency must be a whole number, got '1;2'"),
        ([line("a", 1), line("a", 1)], "line 2: item a: questions: the id 1 occurs 2 times"),
        ([line("a", 1, "7")], "line 2: item a: questions: question 1: parents must be ids .*, got 7"),
        ([line("a", 1, "1")], "line 2: item a: questions: question 1: parents must be ids of other"),
        ([line("a", 1, question=" ")], "line 2: item a: questions: entry 1: question must be a text"),
        ([line("a", 1), line("a", 2, text="other")], "line 3: item a has another text than in line 2: 'other'"),
        ([line(" ", 1)], "line 2: item_id must not be empty"),
        (["a,b"], "line 2: 2 fields, but the header has 9"),
    ],
)
def test_malformed_rows_are_named_with_their_line(tmp_path: Path, lines: list[str], fault: str) -> None:
    with pytest.raises(DataError, match=f"(?s){fault}"):
        read_dpg(write(tmp_path, *lines), LENIENT)


def test_another_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="needs one field 'text'"):
        read_dpg(write(tmp_path, "a", header="prompt"), STRICT)
    with pytest.raises(DataError, match="needs one field 'tuple'"):
        read_dpg(write(tmp_path, line("a", 1), header=HEADER.replace("tuple", "other")), STRICT)
    with pytest.raises(DataError, match="no such file"):
        read_dpg(tmp_path / "nowhere.csv", STRICT)
