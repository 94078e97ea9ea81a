"""Cost of a training iteration: a plain reference trainer, ours, and ours with each optimisation off.

`python -m benchmarks.train` measures all rows of both workloads in rounds, so that drifts of the machine affect all of
them; prints tables in Markdown; and writes every repetition to a JSON file. docs/performance.md explains the columns.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.ablations import OURS, REFERENCE, ROWS, Cost, Row, measure
from benchmarks.memory import chunk_peaks
from benchmarks.tables import parser_of, print_machine, print_table, spread, write_found
from benchmarks.workloads import Workload, quiet, workloads
from chunk_grpo.progress import Meter
from chunk_grpo.training.run import TrainingData

TRAJECTORIES_AT_ONCE = (1, 4)
"""Trajectories per pass in the memory measurement."""

COLUMNS = (
    "trainer",
    "s an iteration (least to largest)",
    "times the reference",
    "rollout s",
    "update s",
    "reward s",
    "outside",
    "forwards",
    "in calls",
    "backwards",
)
MEMORY = ("workload", "trajectories at once", "autograd MiB", "ours MiB", "ours / autograd")


def main(options: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    names, trainers = ("shipped", "compute-bound"), [row.name for row in ROWS]
    parser = parser_of(__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="few images and steps, one repetition: a quick check"
    )
    parser.add_argument("--workloads", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--rows", nargs="+", choices=trainers, default=trainers, help="rows to measure (default: all)"
    )
    parser.add_argument("--repetitions", type=int, help="repetitions of each row (default: the workload's)")
    parser.add_argument("--json", type=Path, default=Path("benchmark.json"), help="JSON file to write")
    arguments = parser.parse_args(options)
    quiet()
    results: dict[str, Any] = {}
    memory = []
    with workloads() as known:
        for name in arguments.workloads:
            workload = known[name].quick() if arguments.quick else known[name]
            if arguments.repetitions is not None:
                workload = replace(workload, repetitions=arguments.repetitions)
            costs = measured(workload, [row for row in ROWS if row.name in arguments.rows])
            print_table(f"{name}: {workload}", COLUMNS, lines(costs))
            peaks = [chunk_peaks(workload, n) for n in TRAJECTORIES_AT_ONCE[: 1 if arguments.quick else None]]
            memory += [_memory_line(name, **each) for each in peaks]
            rows = {row: [asdict(cost) for cost in found] for row, found in costs.items()}
            results[name] = {"about": str(workload), "rows": rows, "memory": peaks}
            # After each workload, so that a stop keeps the finished ones.
            write_found(arguments.json, quick=arguments.quick, workloads=results)
    print_table("Peak extra memory of the update of a 7-step chunk", MEMORY, memory)
    print_machine()


def measured(workload: Workload, rows: Sequence[Row]) -> dict[str, list[Cost]]:
    """Measure all rows of a workload in rounds; keys are names of rows."""
    data = workload.data()
    _warm_up(workload, data)
    found: dict[str, list[Cost]] = {row.name: [] for row in rows}
    with Meter(workload.name, workload.repetitions * len(rows)) as meter:
        for _ in range(workload.repetitions):
            for row in rows:
                found[row.name].append(measure(row, workload, data))
                meter.advance(note=row.name)
    return found


def lines(costs: dict[str, list[Cost]]) -> Iterator[list[str]]:
    """Rows of the table: medians of the repetitions; the counts are the same in all of them."""

    def median(name: str, part: str) -> float:
        return statistics.median(float(getattr(cost, part)) for cost in costs[name])

    for name, (first, *_) in costs.items():
        speed = median(REFERENCE, "seconds") / median(name, "seconds") if REFERENCE in costs else None
        yield [
            name,
            spread([cost.seconds for cost in costs[name]]),
            "-" if speed is None else f"{speed:.2f}",
            *(f"{median(name, part):.2f}" for part in ("rollout", "update", "reward")),
            f"{median(name, 'outside'):.1%}",
            f"{first.forward_states:,}",
            f"{first.forward_calls:,}",
            f"{first.backward_states:,}",
        ]


def _memory_line(name: str, trajectories: int, autograd: int, ours: int) -> list[str]:
    mib = 2**20
    return [name, f"{trajectories}", f"{autograd / mib:.1f}", f"{ours / mib:.1f}", f"{ours / autograd:.2f}"]


def _warm_up(workload: Workload, data: TrainingData) -> None:
    """Run both trainers on a few images: first calls include planning of operations and late imports."""
    few = replace(workload, prompts=2, group=2, sizes=(1, 3))
    for row in ROWS:
        if row.name in (REFERENCE, OURS):
            measure(row, few, data)


if __name__ == "__main__":
    main()
