"""Live reward curves and progress of a running training, read from its journals.

Equal journals give equal pictures and texts, independent of the current time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import numpy as np

from chunk_grpo.artifacts import table_from_rows
from chunk_grpo.reporting import plots, tables
from chunk_grpo.reporting.comparisons import number
from chunk_grpo.reporting.content import REWARD_METRICS
from chunk_grpo.reporting.evidence import Source
from chunk_grpo.reporting.figures import png
from chunk_grpo.reporting.highlight import Highlight, escaped, slug, smaller
from chunk_grpo.reporting.page import HALF
from chunk_grpo.reporting.series import Curve, metric_values, optional_curves
from chunk_grpo.reporting.tables import Cell, Row, Table
from chunk_grpo.training.journal import FILE, Record, read_journal

REWARD, HELDOUT = "reward_mean", "heldout_reward"

RECENT = 20
"""Number of recent iterations whose mean time predicts the remaining ones."""

NONE_YET = "–"


@dataclass(frozen=True)
class Pace:
    """Speed of a training run and the time it still needs.

    Attributes:
        seconds: Time per iteration, including the work between iterations.
        left: Seconds left for all training seeds.
        end: Expected end, in seconds since 1970.
    """

    seconds: float
    left: float
    end: float


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
    key = f"reward-{slug(variant)}"
    source = _source(logs / variant, variant, records)
    picture = _picture(source, records)
    lines = [f"## {escaped(variant)}: {_where(records)}", "", *_sentences(records, source)]
    if picture:
        lines += ["", f"![Training reward by iteration, one line per training seed]({key}.png)"]
    lines += ["", tables.to_markdown(_table(records, source))]
    images = {f"{key}.png": picture} if picture else {}
    return Highlight(key, f"Reward of {variant} during training", "\n".join(lines), images)


def runs_so_far(found: Sequence[Record | None]) -> list[Record]:
    """The runs of the training that started last, in its order of seeds.

    Seeds train one after the other, so journals of later seeds or with another identity are from older trainings.
    """
    records = [record for record in found if record is not None]
    if not records:
        return []
    newest = max(
        records, key=lambda record: (record.started, record.heading.seeds.index(record.heading.seed))
    )
    seeds = newest.heading.seeds[: newest.heading.seeds.index(newest.heading.seed) + 1]
    of_seed = {r.heading.seed: r for r in records if r.heading.identity == newest.heading.identity}
    return [of_seed[seed] for seed in seeds if seed in of_seed]


def pace(record: Record) -> Pace | None:
    """Speed of a run; None before the first iteration of this process ends, and after the last seed has ended.

    Args:
        record: The current run.
    """
    heading = record.heading
    done = sorted(record.times)
    after = heading.seeds[heading.seeds.index(heading.seed) + 1 :]
    if not done or (record.ended is not None and not after):
        return None
    # The first iteration includes the held-out measurement before it; skip it once a second one has ended.
    first = max(len(done) - 1 - RECENT, 0)
    since = record.times[done[first]] if len(done) > 1 else record.started
    seconds = (record.times[done[-1]] - since) / max(len(done) - 1 - first, 1)
    here = 0 if record.ended is not None else heading.iterations - done[-1]
    left = seconds * (here + heading.iterations * len(after))
    return Pace(seconds, left, record.times[done[-1]] + left)


def clock(seconds: float) -> str:
    """Format seconds since 1970 as 2001-01-31 10:20:30 UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _last(record: Record) -> int:
    """The last iteration of a run; 0 before the first has ended."""
    return max((i for i, metrics in record.metrics.items() if REWARD in metrics), default=0)


def _where(records: Sequence[Record]) -> str:
    """Describe the current iteration and training seed."""
    current = records[-1]
    heading = current.heading
    text = f"iteration {_last(current)} of {heading.iterations}"
    if len(heading.seeds) > 1:
        place = heading.seeds.index(heading.seed) + 1
        text += f", training seed {heading.seed} ({place} of {len(heading.seeds)})"
    return text


def _sentences(records: Sequence[Record], source: Source) -> list[str]:
    """Describe the reward over the seeds, and the time left."""
    current = records[-1]
    iteration, sentences = _last(current), []
    values = [v for (_, at), v in metric_values(source).get(REWARD, {}).items() if at == iteration]
    if values:
        mean = number(float(np.mean(values)))
        spread = ""
        if len(values) > 1:
            deviation = number(float(np.std(values, ddof=1)))
            spread = f" ± {deviation} (mean and standard deviation of {len(values)} training seeds)"
        sentences.append(f"Training reward at iteration {iteration}: {mean}{spread}.")
    else:
        sentences.append(f"The first iteration started at {clock(current.started)}.")
    expected = pace(current)
    if expected:
        last = clock(current.times[max(current.times)])
        sentences.append(
            f"{tables.duration(expected.seconds)} per iteration; the last one ended at {last}. "
            f"{tables.duration(expected.left)} left after that, expected end {clock(expected.end)}."
        )
    elif current.ended is not None:
        sentences.append(f"Training ended at {clock(current.ended)}.")
    return [" ".join(sentences)]


def _source(folder: Path, variant: str, records: Sequence[Record]) -> Source:
    """The journals as a table of schema train_metrics."""
    rows = [
        {
            "variant": variant,
            "train_seed": record.heading.seed,
            "iteration": iteration,
            "metric": metric,
            "value": value,
        }
        for record in records
        for iteration, metrics in record.metrics.items()
        for metric, value in metrics.items()
    ]
    return Source(str(folder), table_from_rows(rows, "train_metrics"))


def _picture(source: Source, records: Sequence[Record]) -> bytes | None:
    """Plot one line per seed: a mean over seeds would jump at the current iteration of an unfinished seed."""
    names = [_name(record.heading.seed) for record in records]
    by_seed = {_name(record.heading.seed): _source(Path(source.path), "", [record]) for record in records}
    curves: Mapping[str, Mapping[str, Curve]] = {m: optional_curves(by_seed, m) for m in REWARD_METRICS}
    draws = [
        partial(plots.draw_curves, curves=curves[metric], variants=names, title=title)
        for metric, title in REWARD_METRICS.items()
        if curves[metric]
    ]
    if not draws:
        return None
    legend = partial(plots.draw_legend, variants=names)
    return smaller(png(draws, HALF, legend, plots.legend_height(names)))


def _name(seed: int) -> str:
    return f"seed {seed}"


def _table(records: Sequence[Record], source: Source) -> Table:
    """Progress of each seed, with its first and last rewards."""
    values = metric_values(source)
    rows = []
    for record in records:
        seed, iterations = record.heading.seed, record.heading.iterations
        state = "ended" if record.ended is not None else "running"
        cells = [f"{_last(record)} of {iterations}", state]
        for metric in (REWARD, HELDOUT):
            of_seed = {at: v for (of, at), v in values.get(metric, {}).items() if of == seed}
            ends = (of_seed[min(of_seed)], of_seed[max(of_seed)]) if of_seed else ()
            cells += [number(value) for value in ends] or [NONE_YET, NONE_YET]
        rows.append(Row(str(seed), tuple(Cell(text) for text in cells)))
    heads = ("training seed", "iterations", "state", "reward, first", "last", "held-out, first", "last")
    return Table(heads, tuple(rows))
