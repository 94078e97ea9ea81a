"""A prompt with where it stood, and what was found while reading a set of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["line", "row", "prompt"]
"""What the numbers count: lines of a text file, rows of a Parquet table, or prompts of a generator; all from 1."""

Action: TypeAlias = Literal["refuse", "drop", "keep", "strip", "ignore"]

SHOWN = 20
"""Problems or line numbers that a message lists; of the others it gives the number."""


@dataclass(frozen=True)
class PromptRow:
    """One prompt.

    Attributes:
        text: the prompt.
        category: of the prompt within its set; may be empty.
        metadata: what scorers need to know; JSON.
        line: where it begins in `source`, from 1.
        source: path, URL or hub file it was read from, or the name of a generator.
    """

    text: str
    category: str
    metadata: Mapping[str, object]
    line: int
    source: str


@dataclass(frozen=True)
class Finding:
    """Rows of one source that break one rule, and what was done about them.

    Attributes:
        what: is wrong with them, such as "duplicates".
        action: `drop`: left out; `keep`: taken as they are; `strip`: taken without the whitespace around them;
            `ignore`: taken without what is wrong.
        source: of the rows.
        lines: their numbers, ascending.
        examples: the first of them as a message shows them, at most SHOWN.
    """

    what: str
    action: Action
    source: str
    lines: tuple[int, ...]
    examples: tuple[str, ...]


@dataclass(frozen=True)
class PromptReport:
    """What reading a set of prompts did.

    Attributes:
        sources: files that were read, in order.
        unit: of the line numbers.
        read: prompts, empty ones included.
        kept: prompts that passed the checks.
        used: prompts of these that are taken.
        findings: what was dropped, changed or kept although it breaks a rule.
        notes: anything else worth knowing, a sentence each.
    """

    sources: tuple[str, ...]
    unit: Unit
    read: int
    kept: int
    used: int
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """A sentence for each thing to tell, for a log."""
        done = {
            "drop": "dropped",
            "keep": "kept as they are",
            "strip": "stripped",
            "ignore": "ignored",
            "refuse": "refused",
        }
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

    def as_json(self) -> dict[str, object]:
        """The same for a file; line numbers beyond the first SHOWN are counted only."""
        findings = [
            {
                "what": finding.what,
                "action": finding.action,
                "source": finding.source,
                "count": len(finding.lines),
                "first": list(finding.lines[:SHOWN]),
                "examples": list(finding.examples),
            }
            for finding in self.findings
        ]
        return {
            "sources": list(self.sources),
            "unit": self.unit,
            "read": self.read,
            "kept": self.kept,
            "used": self.used,
            "findings": findings,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class CheckedPrompts:
    """Prompts that broke no rule whose answer is to refuse them.

    Attributes:
        rows: in the order of the files.
        report: what was dropped or changed on the way; it counts `rows` as used.
    """

    rows: tuple[PromptRow, ...]
    report: PromptReport = field(repr=False)

    def part(self, first: int, end: int | None) -> CheckedPrompts:
        """The prompts from position `first` up to `end`, which is not among them; None: all that follow."""
        rows = self.rows[first:end]
        return CheckedPrompts(rows, replace(self.report, used=len(rows)))

    def noted(self, notes: Sequence[str]) -> CheckedPrompts:
        """The same with more notes in the report."""
        return CheckedPrompts(self.rows, replace(self.report, notes=(*self.report.notes, *notes)))
