"""WISE's prompts: JSON arrays of {"prompt_id", "Prompt", "Explanation", "Category", "Subcategory"}, in two versions.

Only the id determines the category. Sources: PKU-YuanGroup/WISE (commit eb51174): WISE_legacy/Calculate.py and
calculate_verified.py (the ranges), WISE_legacy/data (three files, and three *_rewrite.json files with the
knowledge spelt out), data_verified (three files, and merge.json with all of them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chunk_grpo.artifacts import Location
from chunk_grpo.config.problems import schema_problems
from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.checks import check_prompts
from chunk_grpo.prompts.findings import Findings, beginning
from chunk_grpo.prompts.records import json_array
from chunk_grpo.prompts.rows import CheckedPrompts, PromptRow
from chunk_grpo.scorers.wise.protocols import NUM_PROMPTS, ProtocolName, category_of

_CALLED = {
    "cultural knowledge": "culture",
    "time": "time",
    "space": "space",
    "biology": "biology",
    "physical knowledge": "physics",
    "chemistry": "chemistry",
}
"""Category names in the files, in lower case, to this package's names."""


class _Question(BaseModel):
    model_config = ConfigDict(strict=True)
    prompt_id: Annotated[int, Field(ge=1, le=NUM_PROMPTS)]
    prompt: Annotated[str, Field(alias="Prompt")]
    explanation: Annotated[str, Field(alias="Explanation", min_length=1)]
    category: Annotated[str, Field(alias="Category")]


def read_wise(
    locations: Sequence[Location],
    version: ProtocolName,
    rules: PromptChecks,
    rewritten: Sequence[Location] = (),
    missing_ids: Literal["refuse", "report"] = "refuse",
    count: int | None = None,
) -> CheckedPrompts:
    """Read WISE's files, of which `count` prompts are taken from the beginning (None: all).

    Metadata have `wise_id` (whole number), `explanation` (text) and, with `rewritten` files, whose prompts replace the
    texts, `original_prompt` (text). Lines are row numbers in `locations`. Duplicates are not dropped, because each id
    is a separate question: `duplicates: drop` acts like `keep`. With rewritten prompts `duplicates` is always `keep`,
    because several of WISE's own are equal. Both are reported, and a note lists the missing ids.

    DataError if a file is missing or not JSON; if a record lacks a field; if an id is repeated, out of range, in the
    wrong category or without a rewritten prompt; or if ids are missing with `missing_ids: refuse`.
    """
    findings = Findings([str(location) for location in (*locations, *rewritten)], "row")
    rows = _rows(locations, version, findings, original=True)
    if rewritten:
        rows = _replaced(rows, _rows(rewritten, version, findings, original=False), findings)
    if rewritten or rules.duplicates == "drop":
        rules = rules.model_copy(update={"duplicates": "keep"})
    checked = check_prompts(rows.values(), rules, findings)
    missing = _missing(checked.rows)
    if missing and missing_ids == "refuse":
        raise DataError(
            f"{', '.join(findings.sources)}: must hold WISE's ids 1 to {NUM_PROMPTS}, "
            f"{len(missing)} are missing: {_ranges(missing)}. Give all files of the version, or choose "
            "`missing_ids: report`."
        )
    taken = checked.first(count)
    missing = _missing(taken.rows)
    return taken.noted([f"WISE ({version}): {len(missing)} ids are missing: {_ranges(missing)}"] if missing else [])


def _missing(rows: Sequence[PromptRow]) -> list[int]:
    """Ids of the benchmark without a prompt, ascending."""
    return sorted(set(range(1, NUM_PROMPTS + 1)) - {row.metadata["wise_id"] for row in rows})


def _rows(
    locations: Sequence[Location], version: ProtocolName, findings: Findings, *, original: bool
) -> dict[int, PromptRow]:
    """Prompts by their id."""
    rows: dict[int, PromptRow] = {}
    for location in locations:
        source = str(location)
        for line, value in json_array(location, source):
            try:
                question = _question(value, version, original=original)
            except ValueError as error:
                findings.add("format", "not WISE's format", source, line, str(error))
                continue
            number = question.prompt_id
            metadata = {"wise_id": number, "explanation": question.explanation}
            row = PromptRow(question.prompt, category_of(version, number), metadata, line, source)
            earlier = rows.setdefault(number, row)
            if earlier is not row:
                place = f"{earlier.source}, row {earlier.line}"
                message = f"the id {number} is already used in {place}: {beginning(row.text)}"
                findings.add("format", "repeated ids", source, line, message)
    return rows


def _question(value: object, version: ProtocolName, *, original: bool) -> _Question:
    """Check and convert a record; ValueError names the field that violates WISE's format."""
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, got {beginning(value)}")
    try:
        question = _Question.model_validate(value)
    except ValidationError as error:
        problems = schema_problems(error, value, _Question)
        raise ValueError("; ".join(map(str, problems))) from error
    category = category_of(version, question.prompt_id)
    # Rewritten files have some other categories (id 748 of the legacy ones: Ecology); the id determines it.
    if original and _CALLED.get(question.category.strip().lower()) != category:
        raise ValueError(
            f"id {question.prompt_id} is of {category} in the version {version}, but its Category is "
            f"{question.category!r}; is the file from the other version?"
        )
    return question


def _replaced(
    originals: dict[int, PromptRow], rewritten: dict[int, PromptRow], findings: Findings
) -> dict[int, PromptRow]:
    """Original prompts with rewritten texts; differing ids are refused, a mixture would measure neither."""
    rows = {}
    for number in originals | rewritten:
        row, other = originals.get(number), rewritten.get(number)
        if row and other:
            metadata = {**row.metadata, "original_prompt": row.text}
            rows[number] = replace(row, text=other.text, metadata=metadata)
        elif row := row or other:
            lacks = "original" if other else "rewritten"
            message = f"id {number} has no {lacks} prompt: {beginning(row.text)}"
            findings.add("format", f"no {lacks} prompt", row.source, row.line, message)
    return rows


def _ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges: 1-3, 7."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
