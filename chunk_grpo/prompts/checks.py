"""What is wrong with the text of prompts: empty, repeated, too long for the text encoders, unfit characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace

from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.families.tokens import TokenLimits
from chunk_grpo.prompts.findings import Findings, beginning
from chunk_grpo.prompts.rows import CheckedPrompts, PromptReport, PromptRow

_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
"""Control characters, line separators, a byte order mark inside a text, and what is no character at all."""

_REPLACEMENT = "\ufffd"

MAX_CHARACTERS = 10_000
"""Of a prompt: more is a file without line ends, which would cost the tokenizers minutes and gigabytes."""


def check_prompts(
    rows: Iterable[PromptRow],
    rules: PromptChecks,
    findings: Findings,
    notes: Sequence[str] = (),
) -> CheckedPrompts:
    """Check every prompt but for its length, and refuse, drop, change or keep those that break a rule.

    Args:
        rows: prompts as they were read; an empty text is an empty prompt.
        rules: what to do.
        findings: problems of the files' form, found before; those of the prompts are added.
        notes: for the report.

    Returns:
        The prompts that remain, with a report.

    Raises:
        DataError: names up to 20 problems that are to be refused with file, line and value, and counts the others; or
            no prompt remains.
    """
    kept: list[PromptRow] = []
    first: dict[str, PromptRow] = {}
    read = 0
    for row in rows:
        read += 1
        checked = _checked_text(row, rules, findings)
        if checked is None or _repeats(checked, first, rules, findings):
            continue
        kept.append(checked)
    findings.refuse(rules)
    sources = tuple(findings.sources)
    if not kept:
        raise DataError(f"{', '.join(sources)}: must hold prompts, got none at all. Check the path.")
    return CheckedPrompts(
        tuple(kept),
        PromptReport(
            sources, findings.unit, read, len(kept), len(kept), findings.reported(rules), tuple(notes)
        ),
    )


def check_lengths(
    rows: Sequence[PromptRow], report: PromptReport | None, rules: PromptChecks, limits: TokenLimits
) -> PromptReport | None:
    """Find prompts of which a text encoder cuts off the end, so that no image can show it.

    Args:
        rows: prompts that are used, in any order.
        report: of reading them; None: they were drawn here, and their numbers are those of the draw.
        rules: `too_long` says what to do.
        limits: of the text encoders that the prompts are for.

    Returns:
        The report with what was found; None for prompts that were drawn here and fit.

    Raises:
        DataError: prompts are too long and to be refused; names up to 20 and counts the others.
    """
    drawn_here = report is None
    if report is None:
        sources = tuple(dict.fromkeys(row.source for row in rows))
        report = PromptReport(sources, "prompt", len(rows), len(rows), len(rows))
    findings = Findings(report.sources, report.unit)
    for row in sorted(rows, key=lambda row: row.line):
        for encoder, (count, limit) in limits.items():
            tokens = count(row.text)
            if tokens > limit:
                text = f"{tokens} tokens of {encoder}, which takes {limit}: {beginning(row.text)}"
                findings.add(
                    "too_long", f"longer than {encoder}'s {limit} tokens", row.source, row.line, text
                )
    findings.refuse(rules)
    found = findings.reported(rules)
    if drawn_here and not found:
        return None
    return replace(report, findings=(*report.findings, *found))


def normalized(text: str) -> str:
    """The text by which duplicates are found: Unicode NFC, each run of whitespace one space, none at the ends."""
    return " ".join((text if text.isascii() else unicodedata.normalize("NFC", text)).split())


def shared_prompts(
    rows: Iterable[PromptRow], others: Iterable[PromptRow]
) -> list[tuple[PromptRow, PromptRow]]:
    """Prompts of `rows` that are also in `others`, each with the first such one; of an evaluation set, a leak."""
    known: dict[str, PromptRow] = {}
    for other in others:
        known.setdefault(normalized(other.text), other)
    return [(row, known[key]) for row in rows if (key := normalized(row.text)) in known]


def _checked_text(row: PromptRow, rules: PromptChecks, findings: Findings) -> PromptRow | None:
    """The row with its text as it will be used; None if it is empty, far too long or has unfit characters."""
    bare = row.text.strip()
    if not bare:
        findings.add("empty", "empty", row.source, row.line, "an empty prompt")
        return None
    if len(bare) > MAX_CHARACTERS:
        bound = f"{MAX_CHARACTERS:,} characters"
        text = f"must have at most {bound}, got {len(bare):,}; is a line end missing? {beginning(bare)}"
        findings.add("record", f"longer than {bound}", row.source, row.line, text)
        return None
    if bare != row.text:
        text = f"whitespace before or after the prompt: {beginning(row.text)}"
        findings.add("spaces", "whitespace around the prompt", row.source, row.line, text)
        if rules.spaces != "keep":
            row = replace(row, text=bare)
    return row if fit(row.text, "", row, findings) else None


def fit(text: str, of: str, row: PromptRow, findings: Findings) -> bool:
    """Whether a text has characters only that text encoders and tables take; if not, that is a problem of the row.

    Args:
        text: the prompt, or another text of the row.
        of: begins the message, such as "category: "; empty for the prompt.
        row: for file and line.
        findings: gets the problem.
    """
    if found := _UNFIT.search(text):
        message = f"{of}{_named(found.group())} at character {found.start() + 1}: {beginning(text)}"
        findings.add("control", "control characters", row.source, row.line, message)
    elif _REPLACEMENT in text:
        message = (
            f"{of}the replacement character U+FFFD at character {text.index(_REPLACEMENT) + 1}, which a wrong encoding "
            f"leaves behind: {beginning(text)}"
        )
        findings.add("encoding", "wrong encoding", row.source, row.line, message)
    else:
        return True
    return False


def _repeats(row: PromptRow, first: dict[str, PromptRow], rules: PromptChecks, findings: Findings) -> bool:
    """Whether the row goes because its prompt was there before."""
    earlier = first.setdefault(normalized(row.text), row)
    if earlier is row:
        return False
    place = f"{earlier.source}, " if earlier.source != row.source else ""
    text = f"the same prompt as in {place}{findings.unit} {earlier.line}: {beginning(row.text)}"
    findings.add("duplicates", "duplicates", row.source, row.line, text)
    return rules.duplicates == "drop"


def _named(character: str) -> str:
    names = {"\t": "a tab", "\n": "a line feed", "\r": "a carriage return", "\ufeff": "a byte order mark"}
    number = f"U+{ord(character):04X}"
    if character in names:
        return f"{names[character]} ({number})"
    if 0xD800 <= ord(character) <= 0xDFFF:
        return f"half of a surrogate pair ({number})"
    return f"the control character {number}"
