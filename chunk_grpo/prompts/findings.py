"""Problems of a set of prompts: collected, then raised together in one error, or reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.rows import SHOWN, Action, Finding, Unit

Kind: TypeAlias = Literal[
    "format", "category", "records", "characters", "duplicates", "empty", "spaces", "too_long", "pictures", "shared"
]
"""`format` is always refused; `category`, an invalid value in a category field that was not requested, is ignored; the
others are names of rules in PromptChecks.
"""

QUOTED = 60
"""Maximum number of characters of a value quoted in a message."""

LISTED = 200
"""Maximum number of characters of a list of names in a message."""

_CHOICES: Mapping[Kind, str] = {
    "records": "`prompts.checks.records: drop`",
    "characters": "`prompts.checks.characters: drop` or `keep`",
    "duplicates": "`prompts.checks.duplicates: drop` (all but the first) or `keep`",
    "empty": "`prompts.checks.empty: drop`",
    "spaces": "`prompts.checks.spaces: strip`, `drop` or `keep`",
    "too_long": "`prompts.checks.too_long: drop` or `keep` (the text encoder truncates them) or, for T5, a higher "
    "`model.max_sequence_length`",
    "pictures": "`prompts.checks.pictures: crop` or `drop`",
    "shared": "`prompts.checks.shared: drop` (from the train split) or `keep`",
}


def action(rules: PromptChecks, kind: Kind) -> Action:
    """Action for a kind of problem."""
    chosen: Action = "ignore" if kind == "category" else getattr(rules, kind, "refuse")
    return chosen


@dataclass
class Findings:
    """Collected problems, by sort."""

    sources: Sequence[str]
    """Files, in the order of messages; with several files, messages name the file of each problem."""
    unit: Unit = "line"
    """Unit of the line numbers."""
    _found: dict[tuple[Kind, str, str], list[tuple[int, str]]] = field(default_factory=dict)

    def add(self, kind: Kind, what: str, source: str, line: int, text: str) -> None:
        """Add a problem of the sort `what`; `kind` determines the action, `text` has the beginning of the value."""
        self._found.setdefault((kind, what, source), []).append((line, text))

    def refuse(self, rules: PromptChecks) -> None:
        """Raise DataError if a problem has the action `refuse`; it lists the first SHOWN and counts the others.

        The last line of the message alone says what is wrong in which file, and what to do.
        """
        refused = {key: found for key, found in self._found.items() if action(rules, key[0]) == "refuse"}
        if not refused:
            return
        listed = sorted(
            (self.sources.index(source), line, text)
            for (_, _, source), found in refused.items()
            for line, text in found[:SHOWN]
        )
        places = [f"{source}, " if len(self.sources) > 1 else "" for source in self.sources]
        shown = [f"  {places[at]}{self.unit} {line}: {text}" for at, line, text in listed[:SHOWN]]
        counts: Counter[str] = Counter()
        for (_, what, _), found in refused.items():
            counts[what] += len(found)
        total = counts.total()
        remedy = self._remedy({kind for kind, _, _ in refused})
        if total == 1:
            ((at, line, text),) = listed
            raise DataError(f"{self.sources[at]}, {self.unit} {line}: {text}. {remedy}")
        sorts = ", ".join(f"{what}: {count}" for what, count in counts.items())
        head = f"{', '.join(self.sources)}: {total} problems ({sorts})"
        if total > SHOWN:
            shown.append(f"  and {total - SHOWN} more")
        raise DataError("\n".join([head, *shown, f"{head}, listed above. {remedy}"]))

    def reported(self, rules: PromptChecks) -> tuple[Finding, ...]:
        """Findings of the problems that are not refused."""
        return tuple(
            Finding(
                what, action(rules, kind), source, tuple(line for line, _ in found), tuple(text for _, text in found)
            )
            for (kind, what, source), found in self._found.items()
        )

    def _remedy(self, kinds: set[Kind]) -> str:
        rules = "; ".join(choice for kind, choice in _CHOICES.items() if kind in kinds)
        if self.unit == "prompt":  # generated prompts have no file to fix
            return f"Set {rules}."
        return f"Fix the file, or a copy of it{', or set ' if rules else ''}{rules}."


def dropped(findings: Iterable[Finding], unit: Unit) -> str:
    """Lines of a message: for each sort of dropped rows their number and the first of them; each begins a new line."""
    return "".join(
        f"\n  {found.what}: {len(set(found.lines))} dropped, the first: {found.source}, {unit} {found.lines[0]}: "
        f"{found.messages[0]}"
        for found in findings
        if found.action == "drop"
    )


def listed(names: Iterable[str]) -> str:
    """Quote names for a message."""
    return shortened(", ".join(map(repr, names))) or "none"


def shortened(text: str) -> str:
    """A list of names, truncated after LISTED characters."""
    return text if len(text) <= LISTED else f"{text[:LISTED]}..."


def beginning(value: object) -> str:
    """Quote a value for a message: with escapes, truncated after QUOTED characters."""
    quoted = repr(value)
    return quoted if len(quoted) <= QUOTED + 2 else f"{quoted[:QUOTED]}..."
