"""The answer of a finished run in a few lines of plain text, for the end of a command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts import read_json

_KEY = "training_reward"


def answer_lines(summary: Mapping[str, Any] | Path) -> list[str]:
    """Training reward of the base and of each policy, with its difference from the base.

    `summary` is the report's summary.json, or its path.
    """
    found = read_json(summary) if isinstance(summary, Path) else summary
    lines = [f"training reward on {found['prompts']} held-out prompts: base {found['base'][_KEY]:.3f}"]
    policies = {name: each for name, each in found.items() if isinstance(each, dict) and "tuned" in each}
    for name, modes in policies.items():
        for mode, measures in modes.items():
            mean, difference = measures[_KEY]["mean"], measures[_KEY]["difference"]
            lines.append(f"  {name}, {mode}: {mean:.3f} ({difference:+.3f})")
    return lines
