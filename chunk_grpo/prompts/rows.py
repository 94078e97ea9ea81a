"""Prompts with their source lines, and the report of reading a set of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["line", "row", "prompt"]
"""Unit of line numbers, from 1: lines of a file, rows of a JSON array or a Parquet table, or prompts of a generator."""

Action: TypeAlias = Literal["refuse", "drop", "keep", "strip", "ignore"]

SHOWN = 20
"""Maximum of problems or line numbers listed in a message; the rest is counted."""


@dataclass(frozen=True)
class PromptRow:
    """One prompt.

    Attributes:
        text: Text of the prompt.
        category: Category of the prompt within its set; may be empty.
        metadata: Data for scorers, JSON values.
        line: Position in `source` where the prompt begins, from 1, in the report's unit.
        source: Path, URL or hub file of the prompt, or name of a generator.
    """

    text: str
    category: str
    metadata: Mapping[str, object]
    line: int
    source: str


@dataclass(frozen=True)
class Finding:
    """Rows of one source that break one rule, and the action taken.

    Attributes:
        what: Description of the problem, such as "duplicates".
        action: Action taken. `drop`: rows removed; `keep`: rows unchanged; `strip`: surrounding whitespace removed;
            `ignore`: invalid value removed.
        source: Source of the rows.
        lines: Line numbers, ascending.
        messages: Message about each row.
    """

    what: str
    action: Action
    source: str
    lines: tuple[int, ...]
    messages: tuple[str, ...]


@dataclass(frozen=True)
class PromptReport:
    """Report of reading a set of prompts.

    Attributes:
        sources: Files that were read, in order.
        unit: Unit of the line numbers.
        read: Number of prompts read, including empty ones.
        kept: Number of prompts that passed the checks.
        used: Number of passed prompts that are used.
        findings: Rows that broke a rule and were dropped, changed or kept.
        notes: Further remarks, one sentence each.
    """

    sources: tuple[str, ...]
    unit: Unit
    read: int
    kept: int
    used: int
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Format the report for a log, one sentence per item."""
        done = {"drop": "dropped", "keep": "kept as they are", "strip": "stripped", "ignore": "ignored"}
        passed = "" if self.used == self.kept else f", {self.kept} passed the checks"
        said = [f"{', '.join(self.sources)}: {self.used} of {self.read} prompts taken{passed}"]
        for finding in self.findings:
            shown = ", ".join(str(line) for line in finding.lines[:SHOWN])
            more = f" and {len(finding.lines) - SHOWN} more" if len(finding.lines) > SHOWN else ""
            said.append(
                f"{finding.source}: {finding.what}: {len(finding.lines)} {done[finding.action]} "
                f"({self.unit} {shown}{more})"
            )
        return said + list(self.notes)

    def findings_rows(self) -> list[tuple[str, str, int, str, str, str]]:
        """Every row that broke a rule: source, unit, line, problem, action, message."""
        return [
            (finding.source, self.unit, line, finding.what, finding.action, message)
            for finding in self.findings
            for line, message in zip(finding.lines, finding.messages, strict=True)
        ]

    def as_json(self) -> dict[str, object]:
        """Convert the report to JSON; only the first SHOWN rows of a finding are listed."""
        findings = [
            {
                "what": finding.what,
                "action": finding.action,
                "source": finding.source,
                "count": len(finding.lines),
                "first": finding.lines[:SHOWN],
                "examples": finding.messages[:SHOWN],
            }
            for finding in self.findings
        ]
        return asdict(self) | {"findings": findings}


@dataclass(frozen=True)
class CheckedPrompts:
    """Prompts that passed the checks.

    Attributes:
        rows: Prompts in the order of the files.
        report: Report of reading them; `used` is the number of `rows`.
    """

    rows: tuple[PromptRow, ...]
    report: PromptReport = field(repr=False)

    def part(self, first: int, end: int | None) -> CheckedPrompts:
        """Prompts from position `first` up to `end` (exclusive; None: to the last)."""
        rows = self.rows[first:end]
        return CheckedPrompts(rows, replace(self.report, used=len(rows)))

    def noted(self, notes: Sequence[str]) -> CheckedPrompts:
        """Copy with more notes in the report."""
        return CheckedPrompts(self.rows, replace(self.report, notes=(*self.report.notes, *notes)))
