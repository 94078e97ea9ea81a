"""The history of a preset's evaluations, DEST/PRESET/history.parquet, with its plot, its page and the means of prompts.

`evaluations/NAME.parquet` beside it has the prompts' means of one evaluation, so that the next one can be compared with
it prompt by prompt while history.parquet stays small.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import pyarrow as pa

from chunk_grpo.artifacts import (
    Location,
    check_writable,
    join,
    read_table,
    table_from_rows,
    write_bytes,
    write_table,
    write_text,
)
from chunk_grpo.artifacts.io import REWRITE_IT
from chunk_grpo.artifacts.publishing import folder_lock, sizes_below
from chunk_grpo.errors import DataError
from chunk_grpo.reporting.highlight import Highlight
from chunk_grpo.reporting.history import HistoryRow, Measured, known
from chunk_grpo.reporting.history_changes import compare
from chunk_grpo.reporting.history_page import history_markdown
from chunk_grpo.reporting.history_plot import trend_png

HISTORY, PLOT, PAGE, MEANS = "history.parquet", "history.png", "history.md", "evaluations"
KEEP_IT = "Restore it from a copy, or move it away to begin a new history."


@dataclass(frozen=True)
class Recorded:
    """What `record` did.

    Attributes:
        repeats: The earlier evaluation that measured exactly the same; empty when something is new.
        newest: The rows of the evaluation; compared with their references, unless it was not added.
        history: All rows in the order of time.
        trend: The page with its plot, as they are in the preset's folder.
    """

    repeats: str
    newest: tuple[HistoryRow, ...]
    history: tuple[HistoryRow, ...]
    trend: Highlight


def record(destination: Location, measured: Measured) -> Recorded:
    """Compare an evaluation with the history at `destination`/PRESET, add it there, and draw the trend.

    An evaluation of that name that is there already is replaced. One that measured exactly what another one there has
    is not added. Each file is replaced in one step; in a local folder two processes wait for each other. In an object
    store two that record for one preset at once lose one of the two in history.parquet: record that one again.

    Args:
        destination: Folder or URL.
        measured: The evaluation.

    Raises:
        DataError: the history is unreadable or another table (it stays as it is), means of a reference are missing, or
            a file cannot be written.
        TransientError: the object store does not answer.
    """
    name = measured.evaluation.name
    folder = join(destination, measured.evaluation.preset)
    check_writable(join(folder, HISTORY))
    with folder_lock(folder):
        there = sizes_below(folder)
        history = read_history(join(folder, HISTORY)) if HISTORY in there else ()
        others = tuple(row for row in history if row.evaluation != name)
        newest, shown = measured.rows, name
        if len(others) == len(history) and known(others, newest):
            shown = history[-1].evaluation  # written again: who added it may have been killed before that
        else:
            newest = _compared(folder, measured, others, there)
            history = tuple(sorted([*others, *newest], key=lambda row: row.evaluated_at))
            write_table(measured.prompts, join(folder, MEANS, f"{name}.parquet"), "evaluation_prompts")
            rows = table_from_rows(map(asdict, history), "evaluation_history")
            write_table(rows, join(folder, HISTORY), "evaluation_history")
        trend = _trend(history, shown)
        write_bytes(trend.images[PLOT], join(folder, PLOT))
        write_text(trend.markdown, join(folder, PAGE))
    return Recorded(known(history, newest), newest, history, trend)


def _compared(
    folder: str, measured: Measured, others: Sequence[HistoryRow], there: Collection[str]
) -> tuple[HistoryRow, ...]:
    """The rows of an evaluation, compared with what the others had before it."""

    def read_means(name: str) -> pa.Table:
        path = f"{MEANS}/{name}.parquet"
        if path not in there:
            raise DataError(
                f"{join(folder, path)}: no such file; scores are compared with the evaluation {name} prompt by "
                f"prompt. Restore it from a copy, or move {HISTORY} away to begin a new history."
            )
        return read_means_of(join(folder, path))

    earlier = [row for row in others if row.evaluated_at <= measured.evaluation.evaluated_at]
    return compare(measured, earlier, read_means).rows


def _trend(history: Sequence[HistoryRow], evaluation: str) -> Highlight:
    page = history_markdown(history, evaluation, PLOT)
    return Highlight("trend", "Scores over the evaluations", page, {PLOT: trend_png(history)})


def read_history(location: Location) -> tuple[HistoryRow, ...]:
    """The rows of a history.parquet, in the order of time.

    Raises:
        DataError: the file is missing, unreadable, or another table.
        TransientError: the object store does not answer.
    """
    return tuple(HistoryRow(**row) for row in _read(location, "evaluation_history").to_pylist())


def read_means_of(location: Location) -> pa.Table:
    """The prompts' means of one evaluation, schema evaluation_prompts; errors as `read_history`."""
    return _read(location, "evaluation_prompts")


def _read(location: Location, schema: Literal["evaluation_history", "evaluation_prompts"]) -> pa.Table:
    try:
        return read_table(location, schema)
    except DataError as error:  # `dvc repro` writes no history
        raise DataError(str(error).replace(REWRITE_IT, KEEP_IT)) from error
