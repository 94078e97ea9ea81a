"""The page of `chunk-grpo accept`, in Markdown, from what its JSON file has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chunk_grpo.reporting.markdown import escaped

PROVES = """
What passed shows that this commit runs the preset on this machine, from prompts to the report, in a small copy: with
its model, scorers, sizes of images and passes, but three iterations and few images. That the reward rises, only the
step `curve` shows, and no step that images get better. What was not checked is named.
Read this page before you send it with its JSON file: messages may name folders of yours.
"""


def page(found: Mapping[str, Any]) -> str:
    """The page; its first line says what failed, and what to do."""
    steps = found["steps"]
    lines = [f"# {_verdict(found['preset'], steps, found['left'])}", PROVES]
    lines += [f"Preset `{found['preset']}`, variant `{found['variant']}`, commit {found['commit'][:12]}.", ""]
    lines += _table(
        ("step", "outcome", "s", "seen"),
        [(step["name"], step["outcome"], f"{step['seconds']:.0f}", step["said"]) for step in steps],
    )
    for step in steps:
        if step["numbers"]:
            lines += ["", f"## {step['name']}", ""]
            lines += _numbers(step["numbers"])
    lines += ["", "## The small copy", "", f"`{' '.join(found['changes'])}`"]
    return "\n".join(lines) + "\n"


def _verdict(preset: str, steps: Sequence[Mapping[str, Any]], left: Sequence[str]) -> str:
    """One line."""
    failed = [step for step in steps if step["outcome"] == "fail"]
    if failed:
        others = f" Also failed: {', '.join(step['name'] for step in failed[1:])}." if failed[1:] else ""
        return f"{preset}: failed at step {failed[0]['name']!r}. {escaped(failed[0]['said'])}{others}"
    unchecked = [step["name"] for step in steps if step["outcome"] == "not checked"]
    if left:
        return f"{preset}: unfinished, {', '.join(left)} did not run; call the command again"
    return f"{preset}: {len(steps) - len(unchecked)} steps passed; not checked: {', '.join(unchecked) or 'nothing'}"


def _numbers(numbers: Mapping[str, Any]) -> Iterator[str]:
    """An item for each number, list or text; a list of rows is a table."""
    for name, value in numbers.items():
        if name == "picture":
            yield f"\n![{name}]({value})\n"
            continue
        rows = value if isinstance(value, list) else []
        if rows and all(isinstance(row, dict) for row in rows):
            yield from _table(tuple(rows[0]), [tuple(map(_shown, row.values())) for row in rows])
        elif isinstance(value, dict):
            yield f"- {name}: " + "; ".join(f"{key} {_shown(one)}" for key, one in value.items())
        else:
            yield f"- {name}: {_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, float):
        return f"{value:.5g}"
    return "none" if value is None else escaped(str(value))


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    head = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    return [*head, *(f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows), ""]
