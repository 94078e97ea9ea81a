"""Tables for the terminal and for Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes:
        title: Title above the table.
        columns: Column headings; the first column is text, the others are numbers.
        rows: Cells of each row, one per column.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def for_terminal(self) -> Table:
        """The table as a rich table."""
        table = Table(title=self.title)
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def as_markdown(self) -> str:
        """The table in Markdown."""
        marks = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = [self.columns, marks, *self.rows]
        return "\n".join([f"### {self.title}", "", *("| " + " | ".join(line) + " |" for line in lines)])


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and range as text; for a single value, the value.

    Raises:
        statistics.StatisticsError: There are no values.
    """
    median = f"{statistics.median(values):.{digits}f}"
    return median if len(values) == 1 else f"{median} ({min(values):.{digits}f} to {max(values):.{digits}f})"
