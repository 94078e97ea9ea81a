"""What all benchmarks share: options, tables in Markdown, JSON results, a description of the machine."""

from __future__ import annotations

import argparse
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from chunk_grpo.artifacts import write_json
from chunk_grpo.artifacts.manifest import cpu_name, output_of

WIDTH = 200
"""Characters in a line of a table; the terminal's width would break lines, which Markdown does not allow."""


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help begins with the docstring of a script."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def machine() -> dict[str, str | int]:
    """Hardware, software versions and commit of a measurement; "-dirty" marks uncommitted changes."""
    return {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": output_of("git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=10") or "unknown",
    }


def write_found(path: Path, **found: object) -> None:
    """Write results beside the description of the machine as JSON."""
    write_json({"machine": machine(), **found}, str(path))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are numbers."""
    table = Table(title=title, title_justify="left", box=box.MARKDOWN)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=WIDTH).print(table)


def print_machine() -> None:
    """Print the description of the machine as one line."""
    Console(width=WIDTH, highlight=False).print(", ".join(f"{name} {value}" for name, value in machine().items()))


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, least and largest value as text; for a single value, the value. There must be one."""
    median = f"{statistics.median(values):.{digits}f}"
    return median if len(values) == 1 else f"{median} ({min(values):.{digits}f} to {max(values):.{digits}f})"
