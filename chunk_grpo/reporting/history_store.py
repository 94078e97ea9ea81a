"""The history of a preset's evaluations, DEST/PRESET/history.parquet, with its plot, its page and the means of prompts.

`evaluations/NAME.parquet` beside it has the prompts' means of one evaluation, so that the next one can be compared with
it prompt by prompt while history.parquet stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from chunk_grpo.reporting.history import HistoryRow, Measured
from chunk_grpo.reporting.history_changes import compare
from chunk_grpo.reporting.history_page import history_markdown
from chunk_grpo.reporting.history_plot import trend_png

HISTORY, PLOT, PAGE, MEANS = "history.parquet", "history.png", "history.md", "evaluations"
KEEP_IT = "Restore it from a copy, or move it away to begin a new history."


@dataclass(frozen=True)
class Recorded:
    """What `record` did.

    Attributes:
        newest: The rows of the evaluation that was recorded, compared with their references.
        history: All rows in the order of time, those among them.
        trend: The page with its plot, as they are in the preset's folder.
    """

    newest: tuple[HistoryRow, ...]
    history: tuple[HistoryRow, ...]
    trend: Highlight


def record(destination: Location, measured: Measured) -> Recorded:
    """Compare an evaluation with the history at `destination`/PRESET, add it there, and draw the trend.

    An evaluation of that name that is there already is replaced. Each file is replaced in one step; in a local folder
    two processes wait for each other. In an object store two that record for one preset at once lose one of the two in
    history.parquet: record that one again.

    Args:
        destination: Folder or URL.
        measured: The evaluation.

    Raises:
        DataError: the history is unreadable or another table (it stays as it is), means of a reference are missing, or
            a file cannot be written.
        TransientError: the object store does not answer.
    """
    evaluation = measured.evaluation
    folder = join(destination, evaluation.preset)
    check_writable(join(folder, HISTORY))
    with folder_lock(folder):
        there = sizes_below(folder)
        known = read_history(join(folder, HISTORY)) if HISTORY in there else ()
        others = [row for row in known if row.evaluation != evaluation.name]
        earlier = [row for row in others if row.evaluated_at <= evaluation.evaluated_at]

        def read_means(name: str) -> pa.Table:
            path = f"{MEANS}/{name}.parquet"
            if path not in there:
                raise DataError(
                    f"{join(folder, path)}: no such file; scores are compared with the evaluation {name} prompt by "
                    f"prompt. Restore it from a copy, or move {HISTORY} away to begin a new history."
                )
            return read_means_of(join(folder, path))

        newest = compare(measured, earlier, read_means).rows
        history = tuple(sorted([*others, *newest], key=lambda row: row.evaluated_at))
        means = join(folder, MEANS, f"{evaluation.name}.parquet")
        write_table(measured.prompts, means, "evaluation_prompts")
        rows = table_from_rows(map(asdict, history), "evaluation_history")
        write_table(rows, join(folder, HISTORY), "evaluation_history")
        trend = _trend(history, evaluation.name)
        write_bytes(trend.images[PLOT], join(folder, PLOT))
        write_text(trend.markdown, join(folder, PAGE))
    return Recorded(newest, history, trend)


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
