"""History of a preset's evaluations, DEST/PRESET/history.parquet, with its plot, its page and prompt means.

`evaluations/NAME.parquet` in the same folder has the prompt means of one evaluation, with which later ones are
compared; history.parquet stays small.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Literal, NamedTuple

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
from chunk_grpo.artifacts.storage import folder_lock, sizes_below
from chunk_grpo.artifacts.table_checks import REWRITE_IT
from chunk_grpo.errors import DataError
from chunk_grpo.reporting.history import HistoryRow, Measured, compare, known
from chunk_grpo.reporting.history_page import history_markdown, trend_png
from chunk_grpo.reporting.markdown import Section, embedded

HISTORY, PLOT, PAGE, MEANS = "history.parquet", "history.png", "history.md", "evaluations"
KEEP_IT = "Restore it from a copy, or move it away to begin a new history."


class Recorded(NamedTuple):
    """Result of `record`."""

    repeats: str
    """Earlier evaluation with exactly the same results; empty if there is none."""
    newest: tuple[HistoryRow, ...]
    """Rows of the evaluation, compared with their references unless the evaluation was not added."""
    history: tuple[HistoryRow, ...]
    """All rows in order of time."""
    trend: Section
    """The page with its plot, for the UI."""


def record(destination: Location, measured: Measured) -> Recorded:
    """Compare an evaluation with the history in `destination`/PRESET, add it to the history, and draw the trend.

    An existing evaluation with the same name is replaced. An evaluation with exactly the results of an existing one is
    not added. Each file is replaced in one step. In a local folder, processes wait for each other; in an object store,
    one of two simultaneous evaluations of a preset is lost from history.parquet and must be recorded again. A history
    that is unreadable or has another schema is not changed, and is a DataError.
    """
    name, folder = measured.rows[0].evaluation, join(destination, measured.rows[0].preset)
    check_writable(join(folder, HISTORY))
    with folder_lock(folder):
        there = sizes_below(folder)
        history = read_history(join(folder, HISTORY)) if HISTORY in there else ()
        others = tuple(row for row in history if row.evaluation != name)
        newest, shown = measured.rows, name
        if len(others) == len(history) and known(others, newest):
            shown = history[-1].evaluation  # the process that added it may have been killed before it drew
        else:
            earlier = [row for row in others if row.evaluated_at <= newest[0].evaluated_at]
            newest = compare(measured, earlier, lambda of: _reference(folder, of, there))
            history = tuple(sorted([*others, *newest], key=lambda row: row.evaluated_at))
            write_table(measured.prompts, join(folder, MEANS, f"{name}.parquet"), "evaluation_prompts")
            rows = table_from_rows(map(asdict, history), "evaluation_history")
            write_table(rows, join(folder, HISTORY), "evaluation_history")
        plot, page = trend_png(history), history_markdown(history, shown, PLOT)
        write_bytes(plot, join(folder, PLOT))
        write_text(page, join(folder, PAGE))
    trend = Section("trend", "Scores over the evaluations", embedded(page, {PLOT: plot}))
    return Recorded(known(history, newest), newest, history, trend)


def _reference(folder: str, name: str, there: Collection[str]) -> pa.Table:
    """Prompt means of an earlier evaluation."""
    path = f"{MEANS}/{name}.parquet"
    if path not in there:
        raise DataError(
            f"{join(folder, path)}: no such file; scores are compared with the evaluation {name} prompt by "
            f"prompt. Restore it from a copy, or move {HISTORY} away to begin a new history."
        )
    return read_means_of(join(folder, path))


def read_history(location: Location) -> tuple[HistoryRow, ...]:
    """Read the rows of a history.parquet, in order of time."""
    return tuple(HistoryRow(**row) for row in _read(location, "evaluation_history").to_pylist())


def read_means_of(location: Location) -> pa.Table:
    """Read the prompt means of one evaluation, schema evaluation_prompts; raises as `read_history`."""
    return _read(location, "evaluation_prompts")


def _read(location: Location, schema: Literal["evaluation_history", "evaluation_prompts"]) -> pa.Table:
    try:
        return read_table(location, schema)
    except DataError as error:  # the usual advice to run `dvc repro` does not restore a history
        raise DataError(str(error).replace(REWRITE_IT, KEEP_IT)) from error
