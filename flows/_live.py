"""Live reward curve and pace of a running training, read from its journal.

Equal journals give equal pictures and texts, independent of the current time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from chunk_grpo.artifacts import table_from_rows
from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.progress import duration
from chunk_grpo.reporting.comparisons import number
from chunk_grpo.reporting.content import REWARD_METRICS
from chunk_grpo.reporting.evidence import Source
from chunk_grpo.reporting.markdown import Section, data_uri, escaped, few_colours, slug
from chunk_grpo.reporting.panels import curve_figure, plot_picture
from chunk_grpo.reporting.series import optional_curves
from chunk_grpo.reporting.tables import Table, text_row, to_markdown
from chunk_grpo.training.journal import FILE, Record, read_journal

RECENT = 20
"""Number of recent iterations whose mean time predicts the remaining ones."""


def live_curves(root: Path, variant: str, seed: str) -> Section | None:
    """Pace and reward curve of a training in a workspace; None if it has not started."""
    record = read_journal(Path(Layout.below(root).journal_folder(variant, seed), FILE))
    if record is None:
        return None
    total = record.heading.iterations
    last = max(_rewards(record, "reward_mean"), default=0)
    parts = [f"## {escaped(variant)}, training seed {seed}: iteration {last} of {total}", _time(record)]
    source = {f"seed {seed}": _source(variant, record)}
    curves = {metric: found for metric in REWARD_METRICS if (found := optional_curves(source, metric))}
    if curves:
        picture = few_colours(plot_picture(curve_figure(curves, REWARD_METRICS, [*source]), [*source]))
        parts.append(f"![Training reward by iteration]({data_uri(picture)})")
    rows = [
        text_row(name, *([number(values[0]), number(values[-1])] if values else ["–", "–"]))
        for name, metric in (("training", "reward_mean"), ("held-out", "heldout_reward"))
        for values in [list(_rewards(record, metric).values())]
    ]
    parts.append(to_markdown(Table(("prompts", "reward, first", "last"), tuple(rows))))
    title = f"Reward of {variant}, training seed {seed}, during training"
    return Section(f"reward-{slug(variant)}-seed-{seed}", title, "\n\n".join(parts))


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


def _rewards(record: Record, metric: str) -> dict[int, float]:
    """A metric by iteration, in ascending order."""
    return {i: metrics[metric] for i, metrics in sorted(record.metrics.items()) if metric in metrics}


def _time(record: Record) -> str:
    """Describe the speed and the expected end, or when training started or ended."""
    if expected := pace(record):
        (seconds, left), last = expected, max(record.times.values())
        return (
            f"{duration(seconds)} per iteration; the last one ended at {_clock(last)}. "
            f"{duration(left)} left after that, expected end {_clock(last + left)}."
        )
    if record.ended is not None:
        return f"Training ended at {_clock(record.ended)}."
    return f"The process started at {_clock(record.started)}; none of its iterations has ended."


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _source(variant: str, record: Record) -> Source:
    """The journal as a table of schema train_metrics."""
    key = {"variant": variant, "train_seed": record.heading.seed}
    rows = [
        {**key, "iteration": iteration, "metric": metric, "value": value}
        for iteration, metrics in record.metrics.items()
        for metric, value in metrics.items()
    ]
    return Source(variant, table_from_rows(rows, "train_metrics"))
