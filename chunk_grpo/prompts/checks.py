"""Checks of prompt texts: empty, repeated, too long for the text encoders, or with invalid characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace

from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.families.tokens import TokenLimits
from chunk_grpo.prompts.findings import Findings, Kind, beginning, dropped
from chunk_grpo.prompts.rows import CheckedPrompts, PromptReport, PromptRow

_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060\u2066-\u2069\ufeff\ufffd-\uffff\ud800-\udfff]")
"""Control characters, line separators, byte order marks inside a text, code points that are no characters, and
characters that nobody sees: zero-width spaces and overrides of the direction. Joiners belong to scripts and emojis.
"""

_SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Halves of a character, which UTF-8 and Parquet cannot store."""

_NAMES = {
    "\t": " (a tab)",
    "\n": " (a line feed)",
    "\r": " (a carriage return)",
    "\ufeff": " (a byte order mark)",
    "\ufffd": " (a sign of a wrong encoding)",
    "\u200b": " (a zero-width space)",
    "\u202e": " (a right-to-left override)",
}

MAX_CHARACTERS = 10_000
"""Maximum length of a prompt. Longer texts indicate missing line ends and cost tokenizers minutes and gigabytes."""


def check_prompts(
    rows: Iterable[PromptRow | None], rules: PromptChecks, findings: Findings, notes: Sequence[str] = ()
) -> CheckedPrompts:
    """Check all prompts, except for their number of tokens; refuse, drop, change or keep those that break a rule.

    Of `rows` as read an empty text is an empty prompt, None a record that cannot be read. `findings` has the problems
    of the records so far; problems of the prompts are added. DataError if problems are refused, or no prompt remains.
    """
    kept: list[PromptRow] = []
    first: dict[Hashable, PromptRow] = {}
    read = 0
    for row in rows:
        read += 1
        checked = None if row is None else _checked_text(row, rules, findings)
        if checked is None or _repeats(checked, first, rules, findings):
            continue
        kept.append(checked)
    findings.refuse(rules)
    sources, reported = tuple(findings.sources), findings.reported(rules)
    if not kept:
        where = f"{', '.join(sources)}: must hold prompts, got"
        if not read:
            raise DataError(f"{where} none at all. Check the path.")
        raise DataError(
            f"{where} {read} {findings.unit}{'s' if read > 1 else ''}, all dropped{dropped(reported, findings.unit)}\n"
            "Fix the file, or the setting that is named."
        )
    report = PromptReport(sources, findings.unit, read, len(kept), len(kept), reported, tuple(notes))
    return CheckedPrompts(tuple(kept), report)


def drop_long(checked: CheckedPrompts, rules: PromptChecks, limits: TokenLimits) -> CheckedPrompts:
    """Drop the prompts of a source that a text encoder would truncate (`too_long: drop`); DataError if all are."""
    report = checked.report
    findings = Findings(report.sources, report.unit)
    long = _find_long(checked.rows, limits, findings)
    rows = tuple(row for row in checked.rows if (row.source, row.line) not in long)
    if not rows:
        raise DataError(
            f"{', '.join(report.sources)}: all {len(checked.rows)} prompts have more tokens than the text encoders "
            "take. Set `prompts.checks.too_long: keep`, or raise `model.max_sequence_length` of T5."
        )
    found = (*report.findings, *findings.reported(rules))
    return CheckedPrompts(rows, replace(report, kept=len(rows), used=len(rows), findings=found))


def check_lengths(
    rows: Sequence[PromptRow], report: PromptReport | None, rules: PromptChecks, limits: TokenLimits
) -> PromptReport | None:
    """Find prompts in use, in any order, that a text encoder would truncate; report them, or refuse them together.

    Here `too_long: drop` acts like `keep`: `drop_long` has dropped what can be dropped. What is left was generated in a
    certain number, or is one of a benchmark's questions. Generated prompts have no `report` of reading them, and get
    one only if there are findings; their `line` is their number in the draw.
    """
    drawn_here = report is None
    if report is None:
        sources = tuple(dict.fromkeys(row.source for row in rows))
        report = PromptReport(sources, "prompt", len(rows), len(rows), len(rows))
    findings = Findings(report.sources, report.unit)
    _find_long(rows, limits, findings)
    if rules.too_long == "drop":
        rules = rules.model_copy(update={"too_long": "keep"})
    findings.refuse(rules)
    found = findings.reported(rules)
    if drawn_here and not found:
        return None
    return replace(report, findings=(*report.findings, *found))


def _find_long(rows: Iterable[PromptRow], limits: TokenLimits, findings: Findings) -> set[tuple[str, int]]:
    """Sources and lines of the prompts with more tokens than an encoder takes; adds a finding for each encoder."""
    long = set()
    for row in sorted(rows, key=lambda row: row.line):
        for encoder, (count, limit) in limits.items():
            tokens = count(row.text)
            if tokens > limit:
                text = f"{tokens} tokens of {encoder}, which takes {limit}: {beginning(row.text)}"
                findings.add("too_long", f"longer than {encoder}'s {limit} tokens", row.source, row.line, text)
                long.add((row.source, row.line))
    return long


def normalized(text: str) -> str:
    """Normalise a text for finding duplicates: Unicode NFC, runs of whitespace as one space, none at the ends."""
    return " ".join((text if text.isascii() else unicodedata.normalize("NFC", text)).split())


def shared_prompts(
    rows: Iterable[PromptRow], others: Iterable[PromptRow], key: Callable[[PromptRow], Hashable]
) -> list[tuple[PromptRow, PromptRow]]:
    """Prompts of `rows` that are also in `others` by their `key`, each with its first match: leaks of an evaluation."""
    known: dict[Hashable, PromptRow] = {}
    for other in others:
        known.setdefault(key(other), other)
    return [(row, known[content]) for row in rows if (content := key(row)) in known]


def text_key(row: PromptRow) -> Hashable:
    """Content of a prompt of which only the text is known, and the picture that it edits."""
    return normalized(row.text), row.picture


def _checked_text(row: PromptRow, rules: PromptChecks, findings: Findings) -> PromptRow | None:
    """Row with its final text; None if the text is empty, longer than MAX_CHARACTERS or has invalid characters."""
    bare = row.text.strip()
    if not bare:
        findings.add("empty", "empty", row.source, row.line, "an empty prompt")
        return None
    if len(bare) > MAX_CHARACTERS:
        bound = f"{MAX_CHARACTERS:,} characters"
        text = f"must have at most {bound}, got {len(bare):,}; is a line end missing? {beginning(bare)}"
        findings.add("records", f"longer than {bound}", row.source, row.line, text)
        return None
    if bare != row.text:
        text = f"whitespace before or after the prompt: {beginning(row.text)}"
        findings.add("spaces", "whitespace around the prompt", row.source, row.line, text)
        if rules.spaces == "drop":
            return None
        if rules.spaces != "keep":
            row = replace(row, text=bare)
    fit = [_fit(text, of, row, rules, findings) for text, of in ((row.text, ""), (row.category, "category: "))]
    return row if all(fit) else None


def _fit(text: str, of: str, row: PromptRow, rules: PromptChecks, findings: Findings) -> bool:
    """Whether the row stays: no unfit characters, or kept ones; `of` names the text in the message."""
    unstorable = _SURROGATE.search(text)
    found = unstorable or _UNFIT.search(text)
    if found is None:
        return True
    character = found.group()
    name = f"U+{ord(character):04X}" + (" (half a character)" if unstorable else _NAMES.get(character, ""))
    message = f"{of}{name} at character {found.start() + 1}: {beginning(text)}"
    kind: Kind = "records" if unstorable else "characters"
    findings.add(kind, "half a character" if unstorable else "invalid characters", row.source, row.line, message)
    return not unstorable and rules.characters == "keep"


def _repeats(row: PromptRow, first: dict[Hashable, PromptRow], rules: PromptChecks, findings: Findings) -> bool:
    """Report a repeated prompt; True if the row is to be dropped."""
    earlier = first.setdefault(text_key(row), row)
    if earlier is row:
        return False
    place = f"{earlier.source}, " if earlier.source != row.source else ""
    text = f"the same prompt as in {place}{findings.unit} {earlier.line}: {beginning(row.text)}"
    findings.add("duplicates", "duplicates", row.source, row.line, text)
    return rules.duplicates == "drop"
