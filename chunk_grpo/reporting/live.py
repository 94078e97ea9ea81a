"""Live reward curves and progress of a running training, read from its journals.

Equal journals give equal pictures and texts, independent of the current time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from chunk_grpo.artifacts import table_from_rows
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


def live_curves(logs: Path, variant: str) -> Highlight | None:
    """Progress and reward curves of a variant's training; None if it has not started.

    Args:
        logs: Folder of the journals, VARIANT/seed-N/progress.jsonl.
        variant: Name of the variant.

    Raises:
        DataError: A journal has another version or cannot be read.
    """
    records = runs_so_far([read_journal(path) for path in (logs / variant).glob(f"seed-*/{FILE}")])
    if not records:
        return None
    # One line per seed: a mean over seeds would jump at the current iteration of an unfinished seed.
    lines = {f"seed {record.heading.seed}": _source(logs / variant, record) for record in records}
    picture = reward_curves(lines, list(lines))
    parts = [
        f"## {escaped(variant)}: {_where(records[-1])}",
        f"{_reward(records)} {_time(records[-1])}".strip(),
        *([f"![Training reward by iteration, one line per training seed]({picture})"] if picture else []),
        tables.to_markdown(_table(records)),
    ]
    title = f"Reward of {variant} during training"
    return Highlight(f"reward-{slug(variant)}", title, "\n\n".join(parts))


def runs_so_far(found: Sequence[Record | None]) -> list[Record]:
    """The runs of the training that started last, in its order of seeds.

    Seeds train one after the other, so journals of later seeds or with another identity are from older trainings.
    """
    records = [record for record in found if record is not None]
    if not records:
        return []
    newest = max(
        records, key=lambda record: (record.started, record.heading.seeds.index(record.heading.seed))
    ).heading
    seeds = newest.seeds[: newest.seeds.index(newest.seed) + 1]
    of_seed = {r.heading.seed: r for r in records if r.heading.identity == newest.identity}
    return [of_seed[seed] for seed in seeds if seed in of_seed]


def pace(record: Record) -> tuple[float, float] | None:
    """Seconds per iteration, and seconds left for all training seeds after the last iteration of the current run.

    None before the first iteration of this process ends, and after the last seed has ended.
    """
    heading, done = record.heading, sorted(record.times)
    after = heading.seeds[heading.seeds.index(heading.seed) + 1 :]
    if not done or (record.ended is not None and not after):
        return None
    # The first iteration includes the held-out measurement before it; skip it once a second one has ended.
    times = [record.times[i] for i in done[-RECENT - 1 :]]
    times = times if len(times) > 1 else [record.started, *times]
    seconds = (times[-1] - times[0]) / (len(times) - 1)
    here = 0 if record.ended is not None else heading.iterations - done[-1]
    return seconds, seconds * (here + heading.iterations * len(after))


def clock(seconds: float) -> str:
    """Format seconds since 1970 as 2001-01-31 10:20:30 UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _last(record: Record) -> int:
    """The last iteration of a run; 0 before the first has ended."""
    return max(_values(record, REWARD), default=0)


def _values(record: Record, metric: str) -> dict[int, float]:
    """A metric by iteration, in ascending order."""
    return {i: metrics[metric] for i, metrics in sorted(record.metrics.items()) if metric in metrics}


def _where(current: Record) -> str:
    """Describe the current iteration and training seed."""
    heading = current.heading
    text = f"iteration {_last(current)} of {heading.iterations}"
    if len(heading.seeds) > 1:
        place = heading.seeds.index(heading.seed) + 1
        text += f", training seed {heading.seed} ({place} of {len(heading.seeds)})"
    return text


def _reward(records: Sequence[Record]) -> str:
    """Describe the reward over the seeds at the current iteration; empty before the first has ended."""
    iteration = _last(records[-1])
    values = [of[iteration] for of in (_values(record, REWARD) for record in records) if iteration in of]
    if not values:
        return ""
    text = f"Training reward at iteration {iteration}: {number(float(np.mean(values)))}"
    if len(values) > 1:
        deviation = number(float(np.std(values, ddof=1)))
        text += f" ± {deviation} (mean and standard deviation of {len(values)} training seeds)"
    return f"{text}."


def _time(current: Record) -> str:
    """Describe the speed and the expected end, or when training started or ended."""
    if expected := pace(current):
        (seconds, left), last = expected, max(current.times.values())
        return (
            f"{tables.duration(seconds)} per iteration; the last one ended at {clock(last)}. "
            f"{tables.duration(left)} left after that, expected end {clock(last + left)}."
        )
    if current.ended is not None:
        return f"Training ended at {clock(current.ended)}."
    return f"The process started at {clock(current.started)}; none of its iterations has ended."


def _source(folder: Path, record: Record) -> Source:
    """The journal as a table of schema train_metrics."""
    key = {"variant": folder.name, "train_seed": record.heading.seed}
    rows = [
        {**key, "iteration": iteration, "metric": metric, "value": value}
        for iteration, metrics in record.metrics.items()
        for metric, value in metrics.items()
    ]
    return Source(str(folder), table_from_rows(rows, "train_metrics"))


def _table(records: Sequence[Record]) -> Table:
    """Progress of each seed, with its first and last rewards."""
    rows = []
    for record in records:
        texts = [
            f"{_last(record)} of {record.heading.iterations}",
            "running" if record.ended is None else "ended",
        ]
        for metric in (REWARD, HELDOUT):
            values = [number(value) for value in _values(record, metric).values()] or ["–"]
            texts += [values[0], values[-1]]
        rows.append(Row(str(record.heading.seed), tuple(map(Cell, texts))))
    heads = ("training seed", "iterations", "state", "reward, first", "last", "held-out, first", "last")
    return Table(heads, tuple(rows))
