"""Results of a benchmark run: JSON format, medians, and comparison with the targets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.rows import OURS, REFERENCE

SPEED_TARGETS = {"shipped": 3.5, "compute-bound": 1.5}
MEMORY_TARGET = 1 / 4
OUTSIDE_TARGET = 0.10

Results = Mapping[str, Any]
"""Output of `python -m benchmarks.train`: "machine", "quick", and "configurations" by name.

Each configuration has "about", "rows" (by name, one record of `rows.Measurement` per repetition), "minimum" by row, and
"memory" (records of `memory.Peaks`).
"""


@dataclass(frozen=True)
class Target:
    """A target of the benchmark.

    Attributes:
        text: Description of the target.
        found: Measured value.
        met: Whether the target is met.
    """

    text: str
    found: str
    met: bool


def medians(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Median of each column over the repetitions, least and largest seconds, and the share outside the model."""
    found = {name: statistics.median(record[name] for record in records) for name in records[0]}
    seconds = [record["seconds"] for record in records]
    outside = statistics.median(
        (record["seconds"] - record["model"] - record["reward"]) / record["seconds"] for record in records
    )
    return {**found, "least": min(seconds), "largest": max(seconds), "outside": outside}


def targets(results: Results) -> list[Target]:
    """Compare the results with the targets; targets without a measurement are left out."""
    found = []
    for name, part in results["configurations"].items():
        rows = part["rows"]
        if REFERENCE in rows and OURS in rows and name in SPEED_TARGETS:
            wanted = SPEED_TARGETS[name]
            speed = medians(rows[REFERENCE])["seconds"] / medians(rows[OURS])["seconds"]
            text = f"{name}: at least {wanted:g} times the reference in seconds an iteration"
            found.append(Target(text, f"{speed:.2f} times", speed >= wanted))
        if OURS in rows:
            share = medians(rows[OURS])["outside"]
            text = f"{name}: at most {OUTSIDE_TARGET:.0%} of the time outside model, decoding and reward"
            found.append(Target(text, f"{share:.1%}", share <= OUTSIDE_TARGET))
        for peaks in part["memory"]:
            share = peaks["ours"] / peaks["autograd"]
            text = (
                f"{name}: peak extra memory of a 7-step chunk's update at most {MEMORY_TARGET:.2f} of autograd's, "
                f"{peaks['trajectories']} at once"
            )
            found.append(Target(text, f"{share:.2f}", share <= MEMORY_TARGET))
    return found
