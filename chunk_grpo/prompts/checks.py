"""Checks of prompt texts: empty, repeated, too long for the text encoders, or with invalid characters."""

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

_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffd-\uffff\ud800-\udfff]")
"""Control characters, line separators, byte order marks inside a text, and code points that are no characters."""

_NAMES = {
    "\t": " (a tab)",
    "\n": " (a line feed)",
    "\r": " (a carriage return)",
    "\ufeff": " (a byte order mark)",
    "\ufffd": " (a sign of a wrong encoding)",
}

MAX_CHARACTERS = 10_000
"""Maximum length of a prompt. Longer texts indicate missing line ends and cost tokenizers minutes and gigabytes."""


def check_prompts(
    rows: Iterable[PromptRow],
    rules: PromptChecks,
    findings: Findings,
    notes: Sequence[str] = (),
) -> CheckedPrompts:
    """Check all prompts, except for their number of tokens; refuse, drop, change or keep those that break a rule.

    Args:
        rows: Prompts as read; an empty text is an empty prompt.
        rules: Actions for suspicious prompts.
        findings: Format problems found so far; problems of the prompts are added.
        notes: Notes for the report.

    Returns:
        Remaining prompts, with a report.

    Raises:
        DataError: Problems are refused (the message lists up to 20 with file, line and value, and counts the others),
            or no prompt remains.
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
    """Find prompts that a text encoder would truncate.

    Args:
        rows: Prompts in use, in any order.
        report: Report of reading them; None: generated prompts, whose `line` is their number in the draw.
        rules: Actions; only `too_long` is used.
        limits: Token limits of the text encoders.

    Returns:
        Report with the findings; None for generated prompts without findings.

    Raises:
        DataError: Too long prompts are refused; the message lists up to 20 and counts the others.
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
    """Normalise a text for finding duplicates: Unicode NFC, runs of whitespace as one space, none at the ends."""
    return " ".join((text if text.isascii() else unicodedata.normalize("NFC", text)).split())


def shared_prompts(
    rows: Iterable[PromptRow], others: Iterable[PromptRow]
) -> list[tuple[PromptRow, PromptRow]]:
    """Prompts of `rows` that are also in `others`, each with its first match. For an evaluation set they are leaks."""
    known: dict[str, PromptRow] = {}
    for other in others:
        known.setdefault(normalized(other.text), other)
    return [(row, known[key]) for row in rows if (key := normalized(row.text)) in known]


def _checked_text(row: PromptRow, rules: PromptChecks, findings: Findings) -> PromptRow | None:
    """Row with its final text; None if the text is empty, longer than MAX_CHARACTERS or has invalid characters."""
    bare = row.text.strip()
    if not bare:
        findings.add("empty", "empty", row.source, row.line, "an empty prompt")
        return None
    if len(bare) > MAX_CHARACTERS:
        bound = f"{MAX_CHARACTERS:,} characters"
        text = f"must have at most {bound}, got {len(bare):,}; is a line end missing? {beginning(bare)}"
        findings.add("format", f"longer than {bound}", row.source, row.line, text)
        return None
    if bare != row.text:
        text = f"whitespace before or after the prompt: {beginning(row.text)}"
        findings.add("spaces", "whitespace around the prompt", row.source, row.line, text)
        if rules.spaces != "keep":
            row = replace(row, text=bare)
    fit = [_fit(text, of, row, findings) for text, of in ((row.text, ""), (row.category, "category: "))]
    return row if all(fit) else None


def _fit(text: str, of: str, row: PromptRow, findings: Findings) -> bool:
    """Check for characters that text encoders or tables reject; `of` names the text in the message."""
    found = _UNFIT.search(text)
    if found is None:
        return True
    character = found.group()
    name = f"U+{ord(character):04X}" + _NAMES.get(character, "")
    message = f"{of}{name} at character {found.start() + 1}: {beginning(text)}"
    findings.add("format", "invalid characters", row.source, row.line, message)
    return False


def _repeats(row: PromptRow, first: dict[str, PromptRow], rules: PromptChecks, findings: Findings) -> bool:
    """Report a repeated prompt; True if the row is to be dropped."""
    earlier = first.setdefault(normalized(row.text), row)
    if earlier is row:
        return False
    place = f"{earlier.source}, " if earlier.source != row.source else ""
    text = f"the same prompt as in {place}{findings.unit} {earlier.line}: {beginning(row.text)}"
    findings.add("duplicates", "duplicates", row.source, row.line, text)
    return rules.duplicates == "drop"
