"""Problems of a set of prompts: collected, then raised together in one error, or reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.rows import SHOWN, Action, Finding, Unit

Kind: TypeAlias = Literal[
    "encoding", "control", "record", "category", "duplicates", "empty", "spaces", "too_long"
]
"""`encoding`, `control` and `record` (format errors) are always refused; `category`, an invalid value in a category
field that was not requested, is ignored; the others are names of rules in PromptChecks.
"""

QUOTED = 60
"""Maximum number of characters of a value quoted in a message."""

_CHOICES: Mapping[Kind, str] = {
    "duplicates": "`prompts.checks.duplicates: drop` (all but the first) or `keep`",
    "empty": "`prompts.checks.empty: drop`",
    "spaces": "`prompts.checks.spaces: strip` or `keep`",
    "too_long": "`prompts.checks.too_long: keep` (the text encoder truncates them) or, for T5, a higher "
    "`model.max_sequence_length`",
}


def action(rules: PromptChecks, kind: Kind) -> Action:
    """Action for a kind of problem."""
    actions: dict[Kind, Action] = {
        "category": "ignore",
        "duplicates": rules.duplicates,
        "empty": rules.empty,
        "spaces": rules.spaces,
        "too_long": rules.too_long,
    }
    return actions.get(kind, "refuse")


@dataclass
class _Group:
    places: list[tuple[int, int]] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)

    @property
    def lines(self) -> tuple[int, ...]:
        return tuple(line for line, _ in self.places)


@dataclass
class Findings:
    """Collected problems: per sort, all line numbers and the first SHOWN messages.

    Attributes:
        sources: Files, in the order of messages; with several files, messages name the file of each problem.
        unit: Unit of the line numbers.
    """

    sources: Sequence[str]
    unit: Unit = "line"
    _groups: dict[tuple[Kind, str, str], _Group] = field(default_factory=dict)

    def add(self, kind: Kind, what: str, source: str, line: int, text: str, column: int = 1) -> None:
        """Add one problem.

        Args:
            kind: Kind of problem, which determines the action.
            what: Description of the sort of problem.
            source: File with the problem.
            line: Line number in the file.
            text: Message, with the beginning of the value.
            column: Character of the line, from 1, for lines with several records.
        """
        group = self._groups.setdefault((kind, what, source), _Group())
        group.places.append((line, column))
        if len(group.examples) < SHOWN:
            group.examples.append(text)

    def until(self, line: int, column: int = 1) -> None:
        """Discard problems at or after `column` of `line`, beyond the limit of records to read."""
        for key, group in list(self._groups.items()):
            group.places = [place for place in group.places if place < (line, column)]
            group.examples = group.examples[: len(group.places)]
            if not group.places:
                del self._groups[key]

    def refuse(self, rules: PromptChecks) -> None:
        """Raise if a problem has the action `refuse`.

        Raises:
            DataError: The message lists the first SHOWN problems in the order of the files and counts the others.
        """
        refused = {key: group for key, group in self._groups.items() if action(rules, key[0]) == "refuse"}
        if not refused:
            return
        order = {source: position for position, source in enumerate(self.sources)}
        listed = sorted(
            (order[source], line, text)
            for (_, _, source), group in refused.items()
            for line, text in zip(group.lines, group.examples, strict=False)
        )
        shown = [f"  {self._place(self.sources[at], line)}: {text}" for at, line, text in listed[:SHOWN]]
        counts: Counter[str] = Counter()
        for (_, what, _), group in refused.items():
            counts[what] += len(group.places)
        total = sum(counts.values())
        sorts = ", ".join(f"{what}: {count}" for what, count in counts.items())
        head = f"{', '.join(self.sources)}: {total} problem{'s' if total > 1 else ''} ({sorts})"
        if total > SHOWN:
            shown.append(f"  and {total - SHOWN} more")
        raise DataError("\n".join([head, *shown, self._remedy({kind for kind, _, _ in refused})]))

    def reported(self, rules: PromptChecks) -> tuple[Finding, ...]:
        """Findings of the problems that are not refused."""
        return tuple(
            Finding(what, action(rules, kind), source, group.lines, tuple(group.examples))
            for (kind, what, source), group in self._groups.items()
        )

    def _remedy(self, kinds: set[Kind]) -> str:
        rules = [choice for kind, choice in _CHOICES.items() if kind in kinds]
        if self.unit == "prompt":  # generated prompts have no file to fix
            return f"Set {'; '.join(rules)}."
        if not rules:
            return "Fix the file, or a copy of it."
        return f"Fix the file, or a copy of it, or set {'; '.join(rules)}."

    def _place(self, source: str, line: int) -> str:
        return f"{source}, {self.unit} {line}" if len(self.sources) > 1 else f"{self.unit} {line}"


def beginning(value: object) -> str:
    """Quote a value for a message: with escapes, truncated after QUOTED characters."""
    quoted = repr(value)
    return quoted if len(quoted) <= QUOTED + 2 else f"{quoted[:QUOTED]}..."
