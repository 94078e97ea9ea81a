"""How the variants trained, in numbers: sizes, clipping, ratios, time; which chunks were drawn; where plans moved.

Only what every version of the trainer has written is required of the metrics. These are optional, and what needs
them is left out where they are missing: trained_steps, kl, degenerate_groups, fidelity_p99, chunk_draws/J,
chunk_clip_fraction/J, profile_drift, boundary_shift and chunk_size/J.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from chunk_grpo.artifacts import RunManifest
from chunk_grpo.reporting.evidence import Source, TrainingSettings
from chunk_grpo.reporting.series import MetricValues, metric_values

FIDELITY_LIMIT = 0.1
"""Share of the clip range from which on rounding is worth a warning, as in the trainer."""


@dataclass(frozen=True)
class Trained:
    """A variant's training in numbers: means over training seeds and iterations; None where not recorded.

    Attributes:
        variant: Name.
        images: Drawn in an iteration.
        clip_ranges: epsilon of Eq. (13): one, or one for each chunk.
        items: (sample, step) items back-propagated in an iteration.
        clip_fraction: Share of the terms whose gradient is clipped.
        ratio_distance: Largest |ratio - 1| of an iteration.
        kl: To the base, per step.
        grad_norm: Before clipping.
        degenerate_groups: Groups of equal rewards in an iteration.
        fidelity: The 99th percentile of the log-probabilities' rounding over the smallest clip range.
        seconds: Wall time of the train stage over its iterations.
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
    """How often a chunk was trained, over all training seeds and iterations.

    Attributes:
        chunk: From 0, noise to image; with a window or branches the number of a trajectory's noisy step.
        draws: Times it was selected.
        share: Of all draws of the variant.
        clip_fraction: Share of these draws that were clipped; None where it was never drawn.
    """

    chunk: int
    draws: int
    share: float
    clip_fraction: float | None


@dataclass(frozen=True)
class PlanMoment:
    """Where a plan that follows the policy stands after some iterations.

    Attributes:
        iteration: From 1.
        plans: Chunk sizes, each plan that a training seed has once.
        profile_drift: Mean over the training seeds.
        boundary_shift: Mean over the training seeds, in steps.
    """

    iteration: int
    plans: tuple[tuple[int, ...], ...]
    profile_drift: float
    boundary_shift: float | None


def trained_in_numbers(
    sources: Mapping[str, Source], training: TrainingSettings, runs: Sequence[RunManifest]
) -> tuple[Trained, ...]:
    """A line for each variant.

    Args:
        sources: Variant to schema train_metrics.
        training: Their settings.
        runs: Manifests, among them those of the stages train@VARIANT.
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
    """Draws of each chunk of one variant; empty where they were not recorded."""
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
    """First, middle and last iteration of a plan that follows the policy; empty for one that stays."""
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
    """(training seed, iteration) without iteration 0, the base."""
    return [key for key in values if key[1] > 0]


def _mean(values: MetricValues, metric: str) -> float | None:
    found = values.get(metric, {})
    return _mean_of([found[key] for key in _trained_keys(found)])


def _mean_of(values: Collection[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _numbers(values: MetricValues, start: str) -> list[int]:
    """The numbers J of the metrics `start`J, ascending."""
    return sorted(int(metric.removeprefix(start)) for metric in values if metric.startswith(start))
