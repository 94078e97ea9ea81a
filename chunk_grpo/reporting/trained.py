"""Training statistics of the variants: sizes, clipping, ratios, time, chunks drawn, and recomputed plans.

Required are only the metrics that every version of the trainer has written. The following are optional, and values that
depend on missing ones are left out: trained_steps, kl, distance_from_base, degenerate_groups, fidelity_*,
chunk_draws/J, chunk_clip_fraction/J, step_clip_fraction/U/S, step_log_ratio/U/S, profile_drift, boundary_shift and
chunk_size/J.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from chunk_grpo.artifacts import RunManifest
from chunk_grpo.artifacts.manifest import ITERATIONS
from chunk_grpo.reporting.evidence import Source, TrainingSettings
from chunk_grpo.reporting.series import MetricValues, metric_values

STEP_METRICS = ("step_clip_fraction", "step_log_ratio")
FIDELITY_LIMIT = 0.1
"""Share of the clip range above which rounding causes a warning, as in the trainer."""


@dataclass(frozen=True)
class Trained:
    """Training statistics of a variant: means over training seeds and iterations; None if not recorded.

    The fields are the columns of plots/how_trained.csv.
    """

    variant: str
    images: int
    """Images drawn per iteration."""
    trained_items: float | None
    """(sample, step) items back-propagated per iteration."""
    clip_range_min: float
    """Smallest epsilon of Eq. (13) over the chunks."""
    clip_range_max: float
    """Largest epsilon of Eq. (13) over the chunks."""
    clip_fraction: float | None
    """Share of the terms whose gradient is clipped."""
    max_ratio_distance: float | None
    """Largest |ratio - 1| of an iteration."""
    kl: float | None
    """KL divergence from the base in the objective, per step."""
    distance: float | None
    """KL divergence of the last policy's held-out trajectories from the base's."""
    grad_norm: float | None
    """Gradient norm before clipping."""
    degenerate_groups: float | None
    """Groups with equal rewards per iteration."""
    fidelity_p50_of_clip_range: float | None
    """Median of the rounding error of log-probabilities in the first update, divided by the smallest clip range."""
    fidelity_p99_of_clip_range: float | None
    """Its 99th percentile."""
    fidelity_max_of_clip_range: float | None
    """The largest one of all seeds and iterations."""
    fidelity_later_p50_of_clip_range: float | None
    """Median of the error that ratios of later updates carry, divided by the smallest clip range."""
    fidelity_later_p99_of_clip_range: float | None
    """Its 99th percentile."""
    fidelity_later_max_of_clip_range: float | None
    """The largest one of all seeds and iterations."""
    seconds: float | None
    """Wall time of the train stage divided by its iterations."""


@dataclass(frozen=True)
class ChunkUse:
    """Draws of a chunk over all training seeds and iterations; the fields are columns of plots/chunk_draws.csv."""

    chunk: int
    """Number of the chunk, from 0, noise to image; with a window or branches, number of a noisy step."""
    draws: int
    """Number of times that the chunk was selected."""
    share: float
    """Share of all draws of the variant."""
    clip_fraction: float | None
    """Share of these draws that were clipped; None if the chunk was never drawn."""


@dataclass(frozen=True)
class StepUse:
    """Clipping of a step in an update, means over training seeds; the fields are columns of plots/step_clipping.csv."""

    update: int
    """Number of the update in its iteration, from 0."""
    step: int
    """Number of the step, from 0, noise to image."""
    clip_fraction: float
    """Share of the selected items of the step whose gradient is clipped."""
    log_ratio: float
    """Mean |log-ratio| of the step."""


@dataclass(frozen=True)
class PlanMoment:
    """State of a plan that is recomputed during training, at one iteration."""

    iteration: int
    """Iteration, from 1."""
    plans: tuple[tuple[int, ...], ...]
    """Chunk sizes of the distinct plans over the training seeds."""
    profile_drift: float
    """Profile drift, mean over the training seeds."""
    boundary_shift: float | None
    """Boundary shift in steps, mean over the training seeds; None if not recorded."""


def trained_in_numbers(
    variant: str, source: Source, training: TrainingSettings, runs: Sequence[RunManifest]
) -> Trained:
    """Training statistics of one variant; the duration is that of the stages train@VARIANT-SEED.

    Of a resumed training the stage's last process counts, with its iterations.
    """
    # Iteration 0 is the base, which was not trained.
    values = {
        metric: {key: value for key, value in found.items() if key[1] > 0}
        for metric, found in metric_values(source).items()
    }

    def mean(metric: str) -> float | None:
        return _mean(values.get(metric, {}).values())

    def share(metric: str, of: Callable[[Iterable[float]], float | None] = _mean) -> float | None:
        found = of(values.get(metric, {}).values())
        return None if found is None else found / min(ranges)

    ranges = training.clip_ranges[variant]
    lows, highs = values.get("ratio_min", {}), values.get("ratio_max", {})
    clip_fractions = values.get("clip_fraction", {})
    per_seed = Counter(f"train@{variant}-{seed}" for seed, _ in clip_fractions)
    own = [run for run in runs if run.stage in per_seed]
    iterations = sum(int(run.notes.get(ITERATIONS, per_seed[run.stage])) for run in own)
    seconds = sum(run.seconds for run in own) if len(own) == len(per_seed) else None
    return Trained(
        variant=variant,
        images=training.images[variant],
        trained_items=mean("trained_steps"),
        clip_range_min=min(ranges),
        clip_range_max=max(ranges),
        clip_fraction=mean("clip_fraction"),
        max_ratio_distance=_mean(max(1 - lows[key], highs[key] - 1) for key in lows if key in highs),
        kl=mean("kl"),
        distance=mean("distance_from_base"),
        grad_norm=mean("grad_norm"),
        degenerate_groups=mean("degenerate_groups"),
        fidelity_p50_of_clip_range=share("fidelity_p50"),
        fidelity_p99_of_clip_range=share("fidelity_p99"),
        fidelity_max_of_clip_range=share("fidelity_max", _largest),
        fidelity_later_p50_of_clip_range=share("fidelity_later_p50"),
        fidelity_later_p99_of_clip_range=share("fidelity_later_p99"),
        fidelity_later_max_of_clip_range=share("fidelity_later_max", _largest),
        seconds=None if seconds is None or not iterations else seconds / iterations,
    )


def chunk_uses(source: Source) -> tuple[ChunkUse, ...]:
    """Draws of each chunk of one variant; empty if they were not recorded."""
    values = metric_values(source)
    draws = {chunk: values[f"chunk_draws/{chunk}"] for chunk in _numbers(values, "chunk_draws/")}
    total = sum(sum(of_chunk.values()) for of_chunk in draws.values())
    found = []
    for chunk, of_chunk in draws.items():
        fractions = values.get(f"chunk_clip_fraction/{chunk}", {})
        count = sum(of_chunk.values())
        clipped = sum(of_chunk[key] * share for key, share in fractions.items() if key in of_chunk)
        share = count / total if total else 0.0
        found.append(ChunkUse(chunk, round(count), share, clipped / count if count else None))
    return tuple(found)


def step_uses(source: Source) -> tuple[StepUse, ...]:
    """Clipping by update and step of one variant; empty if it was not recorded."""
    values, start = metric_values(source), f"{STEP_METRICS[0]}/"
    places = sorted(tuple(map(int, m.removeprefix(start).split("/"))) for m in values if m.startswith(start))
    return tuple(
        StepUse(update, step, *(fmean(values[f"{m}/{update}/{step}"].values()) for m in STEP_METRICS))
        for update, step in places
    )


def plan_moments(source: Source) -> tuple[PlanMoment, ...]:
    """A recomputed plan at its first, middle and last iteration; empty for a fixed plan."""
    values = metric_values(source)
    iterations = sorted({iteration for _, iteration in values.get("profile_drift", {})})
    if not iterations:
        return ()
    chosen = dict.fromkeys((iterations[0], iterations[(len(iterations) - 1) // 2], iterations[-1]))
    return tuple(_moment(values, iteration) for iteration in chosen)


def _moment(values: MetricValues, iteration: int) -> PlanMoment:
    here = {
        metric: {seed: value for (seed, at), value in sorted(found.items()) if at == iteration}
        for metric, found in values.items()
    }
    drift, chunks = here["profile_drift"], _numbers(values, "chunk_size/")
    sizes = [here[f"chunk_size/{chunk}"] for chunk in chunks]
    plans = (tuple(round(of_chunk[seed]) for of_chunk in sizes if seed in of_chunk) for seed in drift)
    return PlanMoment(
        iteration=iteration,
        plans=tuple(dict.fromkeys(plans)),
        profile_drift=sum(drift.values()) / len(drift),
        boundary_shift=_mean(here.get("boundary_shift", {}).values()),
    )


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def _largest(values: Iterable[float]) -> float | None:
    return max(values, default=None)


def _numbers(values: MetricValues, start: str) -> list[int]:
    """The numbers J of all metrics named `start`J, ascending."""
    return sorted(int(metric.removeprefix(start)) for metric in values if metric.startswith(start))
