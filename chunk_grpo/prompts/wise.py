"""WISE's prompts: JSON arrays of {"prompt_id", "Prompt", "Explanation", "Category", "Subcategory"}, in two versions.

Only the id determines the category. Sources: PKU-YuanGroup/WISE (commit eb51174): WISE_legacy/Calculate.py and
calculate_verified.py (the ranges), WISE_legacy/data (three files, and three *_rewrite.json files with the
knowledge spelt out), data_verified (three files, and merge.json with all of them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from chunk_grpo.artifacts import Location
from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.checks import check_prompts
from chunk_grpo.prompts.content import INVALID, decoded, json_array, read_bytes
from chunk_grpo.prompts.findings import Findings, beginning
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


@dataclass(frozen=True)
class _Question:
    prompt: str
    explanation: str
    number: int
    line: int
    source: str


def read_wise(
    locations: Sequence[Location],
    version: ProtocolName,
    rules: PromptChecks,
    rewritten: Sequence[Location] = (),
    missing_ids: Literal["refuse", "report"] = "refuse",
    count: int | None = None,
) -> CheckedPrompts:
    """Read WISE's files.

    Args:
        locations: One or more paths or URLs.
        version: Version of the benchmark.
        rules: Actions for suspicious prompts. Duplicates are not dropped, because each id is a separate question:
            `duplicates: drop` acts like `keep`. With rewritten prompts `duplicates` is always `keep`, because
            several of WISE's own rewritten prompts are equal. Both are reported.
        rewritten: Files with a replacement prompt for each id.
        missing_ids: Action when the files lack ids from 1 to 1000.
        count: Number of prompts taken from the beginning; None: all. A note lists the missing ids.

    Returns:
        The prompts; metadata has `wise_id` (whole number), `explanation` (text) and, with rewritten prompts,
        `original_prompt` (text). Lines are those of `locations`.

    Raises:
        DataError: A file is missing or not JSON; a record lacks a field; an id is repeated, out of range, in the wrong
            category or without a rewritten prompt; or ids are missing with `missing_ids: refuse`.
        TransientError: The object store does not answer.
    """
    findings = Findings([str(location) for location in (*locations, *rewritten)])
    questions = _questions(locations, version, findings, original=True)
    spelt_out = _questions(rewritten, version, findings, original=False)
    if rewritten:
        _compare(questions, spelt_out, findings)
    rows = [_row(question, version, spelt_out.get(number)) for number, question in questions.items()]
    if rewritten or rules.duplicates == "drop":
        rules = rules.model_copy(update={"duplicates": "keep"})
    checked = check_prompts(rows, rules, findings)
    missing = _missing(checked.rows)
    if missing and missing_ids == "refuse":
        raise DataError(
            f"{', '.join(findings.sources)}: must hold WISE's ids 1 to {NUM_PROMPTS}, "
            f"{len(missing)} are missing: {_ranges(missing)}. Give all files of the version, or choose "
            "`missing_ids: report`."
        )
    taken = checked.part(0, count)
    missing = _missing(taken.rows)
    return taken.noted(
        [f"WISE ({version}): {len(missing)} ids are missing: {_ranges(missing)}"] if missing else []
    )


def _missing(rows: Sequence[PromptRow]) -> list[int]:
    """Ids of the benchmark without a prompt, ascending."""
    return sorted(set(range(1, NUM_PROMPTS + 1)) - {row.metadata["wise_id"] for row in rows})


def _questions(
    locations: Sequence[Location], version: ProtocolName, findings: Findings, *, original: bool
) -> dict[int, _Question]:
    found: dict[int, _Question] = {}
    for location in locations:
        source = str(location)
        text = decoded(read_bytes(location), source, findings)
        for record in json_array(text, source, findings):
            if record.value is INVALID:
                continue
            try:
                question = _question(record.value, record.line, source, version, original=original)
            except ValueError as error:
                findings.add("record", "not WISE's format", source, record.line, str(error))
                continue
            earlier = found.setdefault(question.number, question)
            if earlier is not question:
                place = f"{earlier.source}, line {earlier.line}"
                message = f"the id {question.number} is already used in {place}: {beginning(question.prompt)}"
                findings.add("record", "repeated ids", source, record.line, message)
    return found


def _question(value: object, line: int, source: str, version: ProtocolName, *, original: bool) -> _Question:
    """Check and convert a record.

    Raises:
        ValueError: The record violates WISE's format; the message names the field.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"must be an object, got {beginning(value)}")
    for key in ("prompt_id", "Prompt", "Explanation", "Category"):
        if key not in value:
            raise ValueError(f"{key}: required, but missing; the record has: {', '.join(map(str, value))}")
    number = value["prompt_id"]
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError(f"prompt_id: must be a whole number, got {beginning(number)}")
    for key in ("Prompt", "Explanation", "Category"):
        if not isinstance(value[key], str) or not value[key].strip():
            raise ValueError(f"{key} of id {number}: must be text, got {beginning(value[key])}")
    if not 1 <= number <= NUM_PROMPTS:
        raise ValueError(f"prompt_id: must be from 1 to {NUM_PROMPTS}, got {number}")
    category = category_of(version, number)
    called = _CALLED.get(value["Category"].strip().lower())
    # Rewritten files have some other categories (id 748 of the legacy ones: Ecology); the id determines it.
    if original and called != category:
        raise ValueError(
            f"id {number} is of {category} in the version {version}, but its Category is {value['Category']!r}; is the "
            "file from the other version?"
        )
    return _Question(value["Prompt"], value["Explanation"], number, line, source)


def _compare(
    questions: Mapping[int, _Question], rewritten: Mapping[int, _Question], findings: Findings
) -> None:
    """Reject differing ids of original and rewritten prompts; a mixture would measure neither."""
    for number, question in questions.items():
        if number not in rewritten:
            message = f"id {number} has no rewritten prompt: {beginning(question.prompt)}"
            findings.add("record", "no rewritten prompt", question.source, question.line, message)
    for number, question in rewritten.items():
        if number not in questions:
            message = f"id {number} has a rewritten prompt, but no original: {beginning(question.prompt)}"
            findings.add("record", "no original prompt", question.source, question.line, message)


def _row(question: _Question, version: ProtocolName, rewritten: _Question | None) -> PromptRow:
    metadata: dict[str, object] = {"wise_id": question.number, "explanation": question.explanation}
    text = question.prompt
    if rewritten is not None:
        metadata["original_prompt"] = question.prompt
        text = rewritten.prompt
    category = category_of(version, question.number)
    return PromptRow(text, category, metadata, question.line, question.source)


def _ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges: 1-3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
