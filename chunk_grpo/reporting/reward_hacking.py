"""Signs of reward hacking on held-out images, and the iterations at which training ended.

All metrics here are optional: artifacts of earlier versions lack them, and the report then omits the related parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chunk_grpo.reporting.evidence import Source, TrainingSettings
from chunk_grpo.reporting.series import Curve, metric_values, optional_curves

IMAGE_STATISTICS = {
    "saturation": "saturation",
    "edge_density": "edge density",
    "colour_entropy": "colour entropy, bits",
    "diversity": "diversity of a prompt’s images",
}


@dataclass(frozen=True)
class Ending:
    """Last and best iterations of a variant's runs, one number per training seed.

    Attributes:
        variant: Name of the variant.
        last: Last iteration of each run.
        best: Iteration of the best held-out score of each run, the earliest on a tie; None if not measured.
    """

    variant: str
    last: tuple[int, ...]
    best: tuple[int | None, ...]


def watched(training: TrainingSettings) -> dict[str, str]:
    """Metric to title, for the metrics that can reveal reward hacking."""
    unseen = {f"heldout/{name}": f"{name}, not part of the reward" for name in training.unseen}
    return unseen | {f"heldout_images/{name}": title for name, title in IMAGE_STATISTICS.items()}


def watched_curves(sources: Mapping[str, Source], training: TrainingSettings) -> dict[str, dict[str, Curve]]:
    """Metric to variant to curve, for the metrics of `watched` that at least one variant has."""
    found = {metric: optional_curves(sources, metric) for metric in watched(training)}
    return {metric: curves for metric, curves in found.items() if curves}


def endings(sources: Mapping[str, Source], training: TrainingSettings) -> tuple[Ending, ...]:
    """Endings of all variants; empty if every run reached the last iteration and the best policy is not kept."""
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
