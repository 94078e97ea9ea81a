"""Is the reward being hacked? What held-out images say that the reward does not, and where training ended.

All metrics here are optional: artifacts of earlier versions lack them, and what needs them is then left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chunk_grpo.reporting.evidence import Source, TrainingSettings
from chunk_grpo.reporting.series import Curve, metric_values, optional_curves

IMAGE_STATISTICS = {
    "saturation": "saturation",
    "edge_density": "density of edges",
    "colour_entropy": "entropy of colours, bits",
    "diversity": "diversity of a prompt’s images",
}


@dataclass(frozen=True)
class Ending:
    """Where a variant's runs ended, one number for each training seed.

    Attributes:
        variant: Name.
        last: Last iteration.
        best: Iteration of the best held-out score, the earliest of equal ones; None where it was not measured.
    """

    variant: str
    last: tuple[int, ...]
    best: tuple[int | None, ...]


def watched(training: TrainingSettings) -> dict[str, str]:
    """Metrics that are watched for hacking, with their titles."""
    unseen = {f"heldout/{name}": f"{name}, not trained on" for name in training.unseen}
    return unseen | {f"heldout_images/{name}": title for name, title in IMAGE_STATISTICS.items()}


def watched_curves(sources: Mapping[str, Source], training: TrainingSettings) -> dict[str, dict[str, Curve]]:
    """Metric to variant to curve, for those metrics that a variant has."""
    found = {metric: optional_curves(sources, metric) for metric in watched(training)}
    return {metric: curves for metric, curves in found.items() if curves}


def endings(sources: Mapping[str, Source], training: TrainingSettings) -> tuple[Ending, ...]:
    """Where runs ended; empty where all went to the last iteration and none keeps its best policy."""
    found = [_ending(variant, source, training) for variant, source in sources.items()]
    early = any(last < training.iterations for ending in found for last in ending.last)
    return tuple(found) if early or training.keeps_best else ()


def _ending(variant: str, source: Source, training: TrainingSettings) -> Ending:
    values = metric_values(source)
    last: dict[int, int] = {}
    for of_metric in values.values():
        for seed, iteration in of_metric:
            last[seed] = max(iteration, last.get(seed, 0))
    decisive = values.get(training.decisive, {})
    seeds = sorted(last)
    return Ending(variant, tuple(last[seed] for seed in seeds), tuple(_best(decisive, s) for s in seeds))


def _best(scores: Mapping[tuple[int, int], float], seed: int) -> int | None:
    measured: Sequence[tuple[float, int]] = [(value, -at) for (of, at), value in scores.items() if of == seed]
    return -max(measured)[1] if measured else None
