"""Cost of a training iteration: a plain reference trainer, ours, and ours with each optimisation off.

`python -m benchmarks.train` measures all rows of both configurations in rounds, so that drifts of the machine affect
all of them; prints tables; and writes every repetition to a JSON file. docs/performance.md explains the columns.
`--from` prints the tables of such a file again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.configurations import Configuration, configurations, quiet
from benchmarks.machine import machine
from benchmarks.memory import chunk_peaks
from benchmarks.minimum import counted_minimum
from benchmarks.report import about, sheets
from benchmarks.results import Results
from benchmarks.rows import OURS, REFERENCE, ROWS, Row, measure
from chunk_grpo.progress import Meter
from chunk_grpo.training.run import TrainingData

TRAJECTORIES_AT_ONCE = (1, 4)
"""Trajectories per pass in the memory measurement."""


def main(options: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    arguments = _parser().parse_args(options)
    if arguments.stored is not None:
        show(json.loads(arguments.stored.read_text(encoding="utf-8")), markdown=arguments.markdown)
        return
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    quiet()
    results: dict[str, Any] = {"machine": machine(), "quick": arguments.quick, "configurations": {}}
    with configurations() as known:
        for name in arguments.configurations:
            configuration = known[name].quick() if arguments.quick else known[name]
            if arguments.repetitions is not None:
                configuration = replace(configuration, repetitions=arguments.repetitions)
            rows = [row for row in ROWS if not arguments.rows or row.name in arguments.rows]
            results["configurations"][name] = run(
                configuration, rows, TRAJECTORIES_AT_ONCE[: 1 if arguments.quick else None]
            )
            # After each configuration, so that a stop keeps the finished ones.
            arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    show(results, markdown=arguments.markdown)


def run(configuration: Configuration, rows: Sequence[Row], at_once: Sequence[int]) -> dict[str, Any]:
    """Run all measurements of one configuration."""
    data = configuration.data()
    found: dict[str, list[dict[str, float]]] = {row.name: [] for row in rows}
    total = configuration.repetitions * len(rows) + len(at_once)
    with Meter(configuration.name, total) as meter:
        _warm_up(configuration, data)
        for _ in range(configuration.repetitions):
            for row in rows:
                found[row.name].append(asdict(measure(row, configuration, data)))
                meter.advance(note=row.name)
        memory = []
        for trajectories in at_once:
            memory.append(asdict(chunk_peaks(configuration, trajectories)))
            meter.advance(note="memory")
    minimum = {}
    for row in rows:
        least = counted_minimum(configuration, row.settings.get("same_noise_in_group", False))
        minimum[row.name] = {"forwards": least.forwards, "backwards": least.backwards}
    return {"about": describe(configuration), "minimum": minimum, "rows": found, "memory": memory}


def describe(configuration: Configuration) -> str:
    """Short description of a configuration."""
    c = configuration
    return (
        f"{c.prompts} prompts x {c.group} images of {c.side} x {c.side} pixels, {c.num_sde_steps + 1} steps, "
        f"chunks {list(c.sizes)}, micro-batches of {c.micro_batch}"
    )


def show(results: Results, *, markdown: bool) -> None:
    """Print the tables."""
    console = Console()
    if markdown:
        text = "\n\n".join([about(results), *(sheet.as_markdown() for sheet in sheets(results))])
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    for sheet in sheets(results):
        console.print(sheet.for_terminal())
    console.print(about(results), highlight=False)


def _warm_up(configuration: Configuration, data: TrainingData) -> None:
    """Run both trainers on a few images: first calls include planning of operations and late imports."""
    few = replace(configuration, prompts=2, group=2, sizes=(1, 3))
    for row in ROWS:
        if row.name in (REFERENCE, OURS):
            measure(row, few, data)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ("shipped", "compute-bound")
    parser.add_argument(
        "--quick", action="store_true", help="few images and steps, one repetition: a quick check"
    )
    parser.add_argument("--configurations", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--rows", nargs="+", choices=[row.name for row in ROWS], help="rows to measure (default: all)"
    )
    parser.add_argument(
        "--repetitions", type=int, help="repetitions of each row (default: the configuration's)"
    )
    parser.add_argument("--threads", type=int, help="number of torch threads (default: torch's)")
    parser.add_argument("--json", type=Path, default=Path("benchmark.json"), help="JSON file to write")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument(
        "--from", dest="stored", type=Path, metavar="JSON", help="only print the tables of this file"
    )
    return parser


if __name__ == "__main__":
    main()
