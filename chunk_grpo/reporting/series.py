"""Curves of the report, for the plots and for plots/*.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.errors import DataError
from chunk_grpo.reporting.evidence import Source

SPREAD = (5.0, 95.0)
"""Percentiles over prompts that bound the band of the profile."""


@dataclass(frozen=True)
class Curve:
    """A line with a band."""

    x: NDArray[np.int64] | NDArray[np.float64]
    """[N] steps, iterations, or work done, ascending."""
    mean: NDArray[np.float64]
    """[N] values of the line."""
    low: NDArray[np.float64]
    """[N] lower edge of the band."""
    high: NDArray[np.float64]
    """[N] upper edge of the band."""


@dataclass(frozen=True)
class Chunk:
    """A chunk of a plan: its steps, its mean relative L1 distance and its weight of Eq. (16)."""

    first_step: int
    num_steps: int
    mean_l1: float
    weight: float


def profile_curve(source: Source, sampler: str) -> Curve:
    """Relative L1 distance per step, Eq. (15): mean over prompts, band of the prompts' `SPREAD` percentiles.

    From schema l1_profile, of the sampler sde or ode; if it is missing, DataError.
    """
    columns = (source.table.column(name).to_pylist() for name in ("sampler", "prompt_id", "step", "l1_rel"))
    by_step: dict[int, dict[str, list[float]]] = {}
    for row_sampler, prompt_id, step, value in zip(*columns, strict=True):
        if row_sampler == sampler:
            by_step.setdefault(step, {}).setdefault(prompt_id, []).append(value)
    if not by_step:
        raise DataError(f"{source.path}: no row with sampler={sampler}; run the stage profile_l1 again")
    steps = sorted(by_step)
    prompt_means = [np.array([np.mean(seeds) for seeds in by_step[step].values()]) for step in steps]
    low, high = np.array([np.percentile(means, SPREAD) for means in prompt_means]).T
    return Curve(np.array(steps), np.array([means.mean() for means in prompt_means]), low, high)


def noise_levels(source: Source) -> dict[int, float]:
    """Step to the noise level t before it."""
    columns = (source.table.column(name).to_pylist() for name in ("step", "t"))
    return dict(sorted(zip(*columns, strict=True)))


def chunks_of(source: Source) -> tuple[Chunk, ...]:
    """The chunks of a plan, from noise to image (schema chunk_plan)."""
    names = ("first_step", "num_steps", "mean_l1", "weight")
    rows = zip(*(source.table.column(name).to_pylist() for name in names), strict=True)
    return tuple(Chunk(*row) for row in sorted(rows))


def metric_curve(source: Source, metric: str) -> Curve:
    """A training metric by iteration: mean over the training seeds, band from the lowest to the highest seed.

    From schema train_metrics of one variant; a missing metric is a DataError.
    """
    by_iteration: dict[int, list[float]] = {}
    for (_, iteration), value in metric_values(source).get(metric, {}).items():
        by_iteration.setdefault(iteration, []).append(value)
    if not by_iteration:
        raise DataError(f"{source.path}: no row with metric={metric}; run the train stage of this variant again")
    iterations = sorted(by_iteration)
    values = [np.array(by_iteration[i]) for i in iterations]
    return Curve(
        np.array(iterations),
        np.array([v.mean() for v in values]),
        np.array([v.min() for v in values]),
        np.array([v.max() for v in values]),
    )


MetricValues = dict[str, dict[tuple[int, int], float]]
"""Metric to (training seed, iteration) to value."""


def metric_values(source: Source) -> MetricValues:
    """All metrics of one variant (schema train_metrics)."""
    names = ("metric", "train_seed", "iteration", "value")
    found: MetricValues = {}
    for metric, *key, value in zip(*(source.table.column(name).to_pylist() for name in names), strict=True):
        found.setdefault(metric, {})[key[0], key[1]] = value
    return found


def optional_curves(sources: Mapping[str, Source], metric: str) -> dict[str, Curve]:
    """Variant to `metric_curve`, for variants with the metric; artifacts of earlier versions lack some metrics."""
    return {
        variant: metric_curve(source, metric)
        for variant, source in sources.items()
        if metric in source.table.column("metric").unique().to_pylist()
    }


def by_work(curves: Mapping[str, Curve], per_iteration: Mapping[str, float | None]) -> dict[str, Curve]:
    """Curves by iteration as curves by the work done, such as seconds.

    Empty unless the work of an iteration is known of at least two variants and not the same for all: the curves by
    iteration then show as much.
    """
    found = {
        variant: replace(curve, x=np.asarray(curve.x, np.float64) * work)
        for variant, curve in curves.items()
        if (work := per_iteration[variant]) is not None
    }
    is_same = len({per_iteration[variant] for variant in found}) < 2
    return {} if is_same else found


def ratio_curve(source: Source) -> Curve:
    """Largest distance of an importance ratio from 1, by iteration, from ratio_min and ratio_max."""
    low, high = metric_curve(source, "ratio_min"), metric_curve(source, "ratio_max")
    return Curve(
        high.x,
        np.maximum(1 - low.mean, high.mean - 1),
        np.maximum(1 - low.high, high.low - 1),
        np.maximum(1 - low.low, high.high - 1),
    )


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV text for `dvc plots`; floats have 6 significant digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row])
    return out.getvalue()


def curve_rows(names: Sequence[object], curve: Curve) -> list[tuple[object, ...]]:
    """Rows (names..., x, mean, low, high) of a curve."""
    columns = (curve.x, curve.mean, curve.low, curve.high)
    return [(*names, *row) for row in zip(*(column.tolist() for column in columns), strict=True)]
