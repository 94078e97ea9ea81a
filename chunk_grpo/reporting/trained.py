"""Training statistics of the variants: sizes, clipping, ratios, time, chunks drawn, and recomputed plans.

Required are only the metrics that every version of the trainer has written. The following are optional, and values that
depend on missing ones are left out: trained_steps, kl, degenerate_groups, fidelity_p99, chunk_draws/J,
chunk_clip_fraction/J, profile_drift, boundary_shift and chunk_size/J.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from chunk_grpo.artifacts import RunManifest
from chunk_grpo.reporting.evidence import Source, TrainingSettings
from chunk_grpo.reporting.series import MetricValues, metric_values

FIDELITY_LIMIT = 0.1
"""Share of the clip range above which rounding causes a warning, as in the trainer."""


@dataclass(frozen=True)
class Trained:
    """Training statistics of a variant: means over training seeds and iterations; None if not recorded.

    Attributes:
        variant: Name of the variant.
        images: Images drawn per iteration.
        clip_ranges: epsilon of Eq. (13): one, or one for each chunk.
        items: (sample, step) items back-propagated per iteration.
        clip_fraction: Share of the terms whose gradient is clipped.
        ratio_distance: Largest |ratio - 1| of an iteration.
        kl: KL divergence from the base, per step.
        grad_norm: Gradient norm before clipping.
        degenerate_groups: Groups with equal rewards per iteration.
        fidelity: 99th percentile of the rounding error of log-probabilities, divided by the smallest clip range.
        seconds: Wall time of the train stage divided by its iterations.
    """

    variant: str
    images: int
    clip_ranges: tuple[float, ...]
    items: float | None
    clip_fraction: float | None
    ratio_distance: float | None
    kl: float | None
    grad_norm: float | None
    degenerate_groups: float | None
    fidelity: float | None
    seconds: float | None


@dataclass(frozen=True)
class ChunkUse:
    """Draws of a chunk over all training seeds and iterations.

    Attributes:
        chunk: Number of the chunk, from 0, noise to image; with a window or branches, number of a noisy step.
        draws: Number of times that the chunk was selected.
        share: Share of all draws of the variant.
        clip_fraction: Share of these draws that were clipped; None if the chunk was never drawn.
    """

    chunk: int
    draws: int
    share: float
    clip_fraction: float | None


@dataclass(frozen=True)
class PlanMoment:
    """State of a plan that is recomputed during training, at one iteration.

    Attributes:
        iteration: Iteration, from 1.
        plans: Chunk sizes of the distinct plans over the training seeds.
        profile_drift: Profile drift, mean over the training seeds.
        boundary_shift: Boundary shift in steps, mean over the training seeds; None if not recorded.
    """

    iteration: int
    plans: tuple[tuple[int, ...], ...]
    profile_drift: float
    boundary_shift: float | None


def trained_in_numbers(
    sources: Mapping[str, Source], training: TrainingSettings, runs: Sequence[RunManifest]
) -> tuple[Trained, ...]:
    """Training statistics of each variant.

    Args:
        sources: Variant to schema train_metrics.
        training: Training settings.
        runs: Manifests, including those of the stages train@VARIANT.
    """
    seconds = {run.stage: run.seconds for run in runs}
    return tuple(
        _trained(variant, metric_values(source), training, seconds.get(f"train@{variant}"))
        for variant, source in sources.items()
    )


def _trained(
    variant: str, values: MetricValues, training: TrainingSettings, seconds: float | None
) -> Trained:
    ranges = training.clip_ranges[variant]
    fidelity = _mean(values, "fidelity_p99")
    lows, highs = values.get("ratio_min", {}), values.get("ratio_max", {})
    distances = [max(1 - lows[key], highs[key] - 1) for key in _trained_keys(lows) if key in highs]
    iterations = len(_trained_keys(values.get("clip_fraction", {})))
    return Trained(
        variant=variant,
        images=training.images[variant],
        clip_ranges=ranges,
        items=_mean(values, "trained_steps"),
        clip_fraction=_mean(values, "clip_fraction"),
        ratio_distance=_mean_of(distances),
        kl=_mean(values, "kl"),
        grad_norm=_mean(values, "grad_norm"),
        degenerate_groups=_mean(values, "degenerate_groups"),
        fidelity=None if fidelity is None else fidelity / min(ranges),
        seconds=None if seconds is None or not iterations else seconds / iterations,
    )


def chunk_uses(source: Source) -> tuple[ChunkUse, ...]:
    """Draws of each chunk of one variant; empty if they were not recorded."""
    values = metric_values(source)
    found = []
    total = sum(sum(v.values()) for metric, v in values.items() if metric.startswith("chunk_draws/"))
    for chunk in _numbers(values, "chunk_draws/"):
        draws = values[f"chunk_draws/{chunk}"]
        fractions = values.get(f"chunk_clip_fraction/{chunk}", {})
        count = sum(draws.values())
        clipped = sum(draws[key] * fraction for key, fraction in fractions.items() if key in draws)
        found.append(
            ChunkUse(chunk, round(count), count / total if total else 0.0, clipped / count if count else None)
        )
    return tuple(found)


def plan_moments(source: Source) -> tuple[PlanMoment, ...]:
    """A recomputed plan at its first, middle and last iteration; empty for a fixed plan."""
    values = metric_values(source)
    drift = values.get("profile_drift", {})
    iterations = sorted({iteration for _, iteration in drift})
    if not iterations:
        return ()
    chosen = dict.fromkeys((iterations[0], iterations[(len(iterations) - 1) // 2], iterations[-1]))
    return tuple(_moment(values, iteration) for iteration in chosen)


def _moment(values: MetricValues, iteration: int) -> PlanMoment:
    seeds = sorted(seed for seed, at in values["profile_drift"] if at == iteration)
    numbers = _numbers(values, "chunk_size/")
    plans = (
        tuple(
            round(values[f"chunk_size/{chunk}"][seed, iteration])
            for chunk in numbers
            if (seed, iteration) in values[f"chunk_size/{chunk}"]
        )
        for seed in seeds
    )
    shifts = values.get("boundary_shift", {})
    return PlanMoment(
        iteration=iteration,
        plans=tuple(dict.fromkeys(plans)),
        profile_drift=sum(values["profile_drift"][seed, iteration] for seed in seeds) / len(seeds),
        boundary_shift=_mean_of([shifts[seed, iteration] for seed in seeds if (seed, iteration) in shifts]),
    )


def _trained_keys(values: Mapping[tuple[int, int], float]) -> list[tuple[int, int]]:
    """Keys (training seed, iteration) without iteration 0, which is the base."""
    return [key for key in values if key[1] > 0]


def _mean(values: MetricValues, metric: str) -> float | None:
    found = values.get(metric, {})
    return _mean_of([found[key] for key in _trained_keys(found)])


def _mean_of(values: Collection[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _numbers(values: MetricValues, start: str) -> list[int]:
    """The numbers J of all metrics named `start`J, ascending."""
    return sorted(int(metric.removeprefix(start)) for metric in values if metric.startswith(start))
