"""The answer of a finished run in a few lines of plain text, for the end of a command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts import read_json
from chunk_grpo.reporting.comparisons import SEEN, digits_of
from chunk_grpo.reporting.evidence import MODES
from chunk_grpo.reporting.palette import MANY

_KEY = "training_reward"


def answer_lines(summary: Mapping[str, Any] | Path) -> list[str]:
    """The answer, the training reward of base, tuned and hybrid, how many images became right or wrong, and a caution.

    `summary` is the report's summary.json, or its path. Of many policies, only the first have a line. The file is a
    DataError if it is missing or corrupt.
    """
    found = read_json(summary) if isinstance(summary, Path) else summary
    answer, seeds = found["answer"], found["train_seeds"]
    rows = [("base", f"{found['base'][_KEY]:.3f}", "")]
    policies = [name for name, modes in found.items() if isinstance(modes, Mapping) and MODES[0] in modes]
    for name in policies[:MANY]:
        rows += [(f"{name}, {mode}", *_texts(of_mode[_KEY])) for mode, of_mode in found[name].items()]
    width = max(len(name) for name, *_ in rows)
    lines = [
        f"Does it help? {answer['text']}",
        f"{answer['measure']}, {found['prompts']} held-out prompts, {seeds} training seed{'s' * (seeds > 1)}, "
        "difference from the base with its 95 % interval:",
        *(f"  {name:{width}}  {mean}  {difference}".rstrip() for name, mean, difference in rows),
    ]
    if len(policies) > MANY:
        lines.append(f"  and {len(policies) - MANY} more in the report")
    return [*lines, *_flips(answer["flips"]), *filter(None, [answer["caution"]])]


def _texts(found: Mapping[str, float | None]) -> tuple[str, str]:
    """Mean, and difference with its interval."""
    mean, difference, low, high = (found[key] for key in ("mean", "difference", "low", "high"))
    if low is None or high is None:
        return f"{mean:.3f}", f"{difference:+.3f} (no interval: too few prompts)"
    digits, size = digits_of(low, high), found["size"]
    of_spread = ""
    if size is not None and (low > 0 or high < 0):
        warning = " (too small to see)" if abs(size) < SEEN else ""
        of_spread = f", {abs(size):.2f} of the base's spread{warning}"
    return f"{mean:.3f}", f"{difference:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f}){of_spread}"


def _flips(found: Mapping[str, Any] | None) -> list[str]:
    """How many images of a variant became right and wrong; nothing if no scorer calls an image right or wrong."""
    if found is None:
        return []
    return [
        f"{found['scorer']}, first image of each of {found['prompts']} prompts, {found['variant']} tuned: "
        f"{found['became_right']} became right, {found['became_wrong']} became wrong"
    ]
