"""Live reward curves and progress of a running training, read from its journals.

Equal journals give equal pictures and texts, independent of the current time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from chunk_grpo.artifacts import table_from_rows
from chunk_grpo.progress import duration
from chunk_grpo.reporting import tables
from chunk_grpo.reporting.comparisons import number
from chunk_grpo.reporting.evidence import Source
from chunk_grpo.reporting.highlight import Highlight, escaped, slug
from chunk_grpo.reporting.highlight_parts import reward_curves
from chunk_grpo.reporting.tables import Cell, Row, Table
from chunk_grpo.training.journal import FILE, Record, read_journal

REWARD, HELDOUT = "reward_mean", "heldout_reward"

RECENT = 20
"""Number of recent iterations whose mean time predicts the remaining ones."""


def live_curves(logs: Path, variant: str, seed: str) -> Highlight | None:
    """Progress and reward curve of a training; None if it has not started.

    `logs` has the journals, VARIANT/seed-N/progress.jsonl; `seed` is as in that name.
    """
    record = read_journal(logs / variant / f"seed-{seed}" / FILE)
    if record is None:
        return None
    line, source = f"seed {seed}", _source(variant, record)
    picture = reward_curves({line: source}, [line])
    parts = [
        f"## {escaped(variant)}, training seed {seed}: iteration {_last(record)} of {record.heading.iterations}",
        _time(record),
        *([f"![Training reward by iteration]({picture})"] if picture else []),
        tables.to_markdown(_table(record)),
    ]
    title = f"Reward of {variant}, training seed {seed}, during training"
    return Highlight(f"reward-{slug(variant)}-seed-{seed}", title, "\n\n".join(parts))


def pace(record: Record) -> tuple[float, float] | None:
    """Seconds per iteration, and seconds left after the last iteration of the current run.

    None before the first iteration of this process ends, and after training has ended.
    """
    done = sorted(record.times)
    if not done or record.ended is not None:
        return None
    # The first iteration includes the held-out measurement before it; skip it once a second one has ended.
    times = [record.times[i] for i in done[-RECENT - 1 :]]
    times = times if len(times) > 1 else [record.started, *times]
    seconds = (times[-1] - times[0]) / (len(times) - 1)
    return seconds, seconds * (record.heading.iterations - done[-1])


def clock(seconds: float) -> str:
    """Format seconds since 1970 as 2001-01-31 10:20:30 UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _last(record: Record) -> int:
    """The last iteration of a run; 0 before the first has ended."""
    return max(_values(record, REWARD), default=0)


def _values(record: Record, metric: str) -> dict[int, float]:
    """A metric by iteration, in ascending order."""
    return {i: metrics[metric] for i, metrics in sorted(record.metrics.items()) if metric in metrics}


def _time(current: Record) -> str:
    """Describe the speed and the expected end, or when training started or ended."""
    if expected := pace(current):
        (seconds, left), last = expected, max(current.times.values())
        return (
            f"{duration(seconds)} per iteration; the last one ended at {clock(last)}. "
            f"{duration(left)} left after that, expected end {clock(last + left)}."
        )
    if current.ended is not None:
        return f"Training ended at {clock(current.ended)}."
    return f"The process started at {clock(current.started)}; none of its iterations has ended."


def _source(variant: str, record: Record) -> Source:
    """The journal as a table of schema train_metrics."""
    key = {"variant": variant, "train_seed": record.heading.seed}
    rows = [
        {**key, "iteration": iteration, "metric": metric, "value": value}
        for iteration, metrics in record.metrics.items()
        for metric, value in metrics.items()
    ]
    return Source(variant, table_from_rows(rows, "train_metrics"))


def _table(record: Record) -> Table:
    """First and last rewards."""
    rows = []
    for name, metric in (("training", REWARD), ("held-out", HELDOUT)):
        values = [number(value) for value in _values(record, metric).values()] or ["–"]
        rows.append(Row(name, (Cell(values[0]), Cell(values[-1]))))
    return Table(("prompts", "reward, first", "last"), tuple(rows))
