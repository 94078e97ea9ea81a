"""Tables of `python -m benchmarks.train`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.results import Results, medians, targets
from benchmarks.rows import REFERENCE
from benchmarks.sheets import Sheet

TIMES = (
    "row",
    "s an iteration (least to largest)",
    "times the reference",
    "rollout s",
    "update s",
    "reward s",
    "outside",
)
COUNTS = ("row", "forwards", "of minimum", "in calls", "backwards", "of minimum", "in calls")
MEMORY = ("configuration", "trajectories at once", "autograd MiB", "ours MiB", "ours / autograd")


def sheets(results: Results) -> list[Sheet]:
    """All tables, the targets last."""
    made = []
    for name, part in results["configurations"].items():
        made += [_times(name, part), _counts(name, part)]
    made.append(_memory(results))
    if results["quick"]:
        return made  # too few images to judge the targets
    met = [[target.text, target.found, "yes" if target.met else "NO"] for target in targets(results)]
    return [*made, Sheet("Targets", ("target", "found", "met"), met)]


def about(results: Results) -> str:
    """One line about the machine of the results."""
    return ", ".join(f"{name} {value}" for name, value in results["machine"].items())


def _times(name: str, part: Mapping[str, Any]) -> Sheet:
    rows = part["rows"]
    reference = medians(rows[REFERENCE])["seconds"] if REFERENCE in rows else None
    lines = []
    for row, records in rows.items():
        m = medians(records)
        lines.append(
            [
                row,
                f"{m['seconds']:.2f} ({m['least']:.2f} to {m['largest']:.2f})",
                "-" if reference is None else f"{reference / m['seconds']:.2f}",
                f"{m['rollout']:.2f}",
                f"{m['update']:.2f}",
                f"{m['reward']:.2f}",
                f"{m['outside']:.1%}",
            ]
        )
    repetitions = max((len(records) for records in rows.values()), default=0)
    return Sheet(f"{name}: {part['about']}; medians of {repetitions}", TIMES, lines)


def _counts(name: str, part: Mapping[str, Any]) -> Sheet:
    lines = []
    for row, records in part["rows"].items():
        m, least = records[0], part["minimum"][row]
        lines.append(
            [
                row,
                f"{m['forward_states']:,}",
                f"{m['forward_states'] / least['forwards']:.3f}",
                f"{m['forward_calls']:,}",
                f"{m['backward_states']:,}",
                f"{m['backward_states'] / least['backwards']:.3f}",
                f"{m['backward_calls']:,}",
            ]
        )
    return Sheet(f"{name}: evaluations of the model in an iteration", COUNTS, lines)


def _memory(results: Results) -> Sheet:
    lines = [
        [
            name,
            f"{peaks['trajectories']}",
            f"{peaks['autograd'] / 2**20:.1f}",
            f"{peaks['ours'] / 2**20:.1f}",
            f"{peaks['ours'] / peaks['autograd']:.2f}",
        ]
        for name, part in results["configurations"].items()
        for peaks in part["memory"]
    ]
    return Sheet("Peak extra memory of the update of a 7-step chunk", MEMORY, lines)
