"""Prompts with their source lines, and the report of reading a set of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, TypeAlias

from chunk_grpo.shapes.scene import Scene

Unit: TypeAlias = Literal["line", "row", "prompt"]
"""Unit of line numbers, from 1: lines of a file, rows of a JSON array or a Parquet table, or prompts of a generator."""

Action: TypeAlias = Literal["refuse", "drop", "keep", "strip", "crop", "ignore"]

SHOWN = 20
"""Maximum of problems or line numbers listed in a message; the rest is counted."""


@dataclass(frozen=True)
class PromptRow:
    """One prompt."""

    text: str
    """Text of the prompt."""
    category: str
    """Category of the prompt within its set; may be empty."""
    metadata: Mapping[str, object]
    """Data for scorers, JSON values."""
    line: int
    """Position in `source` where the prompt begins, from 1, in the report's unit."""
    source: str
    """Path, URL or hub file of the prompt, or name of a generator."""
    picture: str | None = None
    """Path of the picture that it says how to edit; None: it has no file."""
    scene: Scene | None = None
    """Scene of the toy world that it says how to edit; without both it draws a new image."""


@dataclass(frozen=True)
class Finding:
    """Rows of one source that break one rule, and the action taken."""

    what: str
    """Description of the problem, such as "duplicates"."""
    action: Action
    """Action taken. `drop`: rows removed; `keep`: rows unchanged; `strip`: surrounding whitespace removed; `crop`: ends
    of a picture cut; `ignore`: invalid value removed."""
    source: str
    """Source of the rows."""
    lines: tuple[int, ...]
    """Line numbers, ascending."""
    messages: tuple[str, ...]
    """Message about each row."""


@dataclass(frozen=True)
class PromptReport:
    """Report of reading a set of prompts."""

    sources: tuple[str, ...]
    """Files that were read, in order."""
    unit: Unit
    """Unit of the line numbers."""
    read: int
    """Number of prompts read, including empty ones."""
    kept: int
    """Number of prompts that passed the checks."""
    used: int
    """Number of passed prompts that are used."""
    findings: tuple[Finding, ...] = ()
    """Rows that broke a rule and were dropped, changed or kept."""
    notes: tuple[str, ...] = ()
    """Further remarks, one sentence each."""

    def lines(self) -> list[str]:
        """Format the report for a log, one sentence per item."""
        done = {
            "drop": "dropped",
            "keep": "kept as they are",
            "strip": "stripped",
            "crop": "cropped",
            "ignore": "ignored",
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
    """Prompts that passed the checks."""

    rows: tuple[PromptRow, ...]
    """Prompts in the order of the files."""
    report: PromptReport = field(repr=False)
    """Report of reading them; `used` is the number of `rows`."""

    def first(self, count: int | None) -> CheckedPrompts:
        """The first prompts; None: all."""
        rows = self.rows[:count]
        return CheckedPrompts(rows, replace(self.report, used=len(rows)))

    def noted(self, notes: Sequence[str]) -> CheckedPrompts:
        """Copy with more notes in the report."""
        return CheckedPrompts(self.rows, replace(self.report, notes=(*self.report.notes, *notes)))
