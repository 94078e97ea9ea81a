"""Table of several presets of one run: what each policy changed against the base model of its preset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chunk_grpo.reporting.comparisons import NO_BREAK, signed
from chunk_grpo.reporting.highlight import Highlight
from chunk_grpo.reporting.tables import Table, text_row, to_markdown

_MODES = ("tuned", "hybrid")


def presets_compared(summaries: Mapping[str, Mapping[str, Any]]) -> Highlight:
    """Differences from the base model, a row for each preset, policy and way of inference.

    `summaries` has the report/summary.json of each preset, by its name with its changes.
    """
    rows = [row for preset, summary in summaries.items() for row in _rows(preset, summary)]
    metrics = list(dict.fromkeys(metric for *_, found in rows for metric in found))
    columns = ("preset and changes, policy, inference", *(metric.replace("_", " ") for metric in metrics))
    lines = [
        text_row(", ".join(names), *(_cell(found.get(metric)) for metric in metrics))
        for *names, found in rows
    ]
    table = to_markdown(Table(columns, tuple(lines)))
    text = (
        "# Presets and variants of this run\n\n"
        "Mean difference from the base model of the same preset, on the same prompts and seeds, with 95 % intervals. "
        "Differences of variants within a preset are in its report; presets may have other prompts or rewards.\n\n"
    )
    return Highlight("comparison", "Presets and variants of this run", f"{text}{table}\n")


def _rows(preset: str, summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    for policy, modes in summary.items():
        if isinstance(modes, Mapping):
            for mode in _MODES:
                if isinstance(modes.get(mode), Mapping):
                    yield preset, policy, mode, modes[mode]


def _cell(value: Mapping[str, float | None] | None) -> str:
    if value is None:
        return ""
    difference, low, high = value["difference"], value["low"], value["high"]
    if difference is None or low is None or high is None:
        return "" if difference is None else signed(difference)
    return f"{signed(difference)} ({signed(low)}{NO_BREAK}to{NO_BREAK}{signed(high)})"
