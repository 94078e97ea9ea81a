"""DPG-Bench's prompts: dpg_bench.csv of TencentQQGYLab/ELLA, a row for each question about a prompt's images.

Columns: item_id, text (the prompt), keywords, proposition_id, dependency (ids of the parents, 0 for none),
category_broad, category_detailed, tuple and question_natural_language. Source: commit 3c228f1,
dpg_bench/compute_dpg_bench.py.

That evaluator leaves out the first row below the header (prepare_dpg_data skips row 0 of pandas, which has read the
header already). Here it is a question like all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chunk_grpo.artifacts import Location
from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.config.questions import FIELD, parse_questions
from chunk_grpo.prompts.checks import check_prompts
from chunk_grpo.prompts.fields import FieldNames
from chunk_grpo.prompts.findings import Findings, beginning
from chunk_grpo.prompts.records import csv_records
from chunk_grpo.prompts.rows import CheckedPrompts, PromptRow

NUM_PROMPTS = 1065
"""Number of DPG-Bench's prompts: files in dpg_bench/prompts/ at 3c228f1."""

_FAULT = "not DPG-Bench's format"

_COLUMNS = ("item_id", "proposition_id", "dependency", "tuple", "question_natural_language")


def read_dpg(location: Location, rules: PromptChecks, count: int | None = None) -> CheckedPrompts:
    """Read dpg_bench.csv, of which `count` prompts are taken from the beginning (None: all).

    Metadata have `item_id` and `questions`, as chunk_grpo.config.questions describes, each with `category`, such as
    "entity - whole". A prompt's line is that of its first question. Duplicates are not dropped, because each item has
    its own questions: `duplicates: drop` acts like `keep`. A note says if the prompts are not all of DPG-Bench's.
    DataError if a row lacks a value, or an item has two texts, repeats an id, or has a parent that it lacks.
    """
    source = str(location)
    findings = Findings([source])
    items: dict[str, _Item] = {}
    for line, value in csv_records(location, FieldNames("text", metadata=_COLUMNS), source):
        try:
            _add(items, value, line)
        except ValueError as error:
            findings.add("format", _FAULT, source, line, str(error))
    rows = [item.row(name, source) for name, item in items.items()]
    for row in rows:
        try:
            parse_questions(row.metadata)
        except ValueError as error:
            findings.add("format", _FAULT, source, row.line, f"item {row.metadata['item_id']}: {error}")
    if rules.duplicates == "drop":
        rules = rules.model_copy(update={"duplicates": "keep"})
    taken = check_prompts(rows, rules, findings).first(count)
    if len(taken.rows) == NUM_PROMPTS:
        return taken
    return taken.noted([f"{source}: {len(taken.rows)} of DPG-Bench's {NUM_PROMPTS:,} prompts"])


@dataclass(frozen=True)
class _Item:
    """A prompt, the line of its first question, and its questions."""

    text: str
    line: int
    questions: list[dict[str, object]] = field(default_factory=list)

    def row(self, name: str, source: str) -> PromptRow:
        return PromptRow(self.text, "", {"item_id": name, FIELD: self.questions}, self.line, source)


def _add(items: dict[str, _Item], value: object, line: int) -> None:
    """Add a row's question to its item; ValueError names the column of a malformed row."""
    if value is None:
        return  # an empty line
    if isinstance(value, ValueError):
        raise value
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a row, got {beginning(value)}")
    record: Mapping[str, str] = value
    name = record["item_id"].strip()
    if not name:
        raise ValueError("item_id must not be empty")
    parents = [_whole("dependency", part) for part in record["dependency"].split(",")]
    question = {
        "id": _whole("proposition_id", record["proposition_id"]),
        "question": record["question_natural_language"].strip(),
        "parents": [parent for parent in parents if parent != 0],
        "category": record["tuple"].partition("(")[0].strip(),
    }
    item = items.setdefault(name, _Item(record["text"], line))
    if record["text"] != item.text:
        raise ValueError(f"item {name} has another text than in line {item.line}: {beginning(record['text'])}")
    item.questions.append(question)


def _whole(column: str, text: str) -> int:
    try:
        return int(text.strip())
    except ValueError as error:
        raise ValueError(f"{column} must be a whole number, got {text!r}") from error
