"""Signs of reward hacking on held-out images, and the iterations at which training ended.

All metrics here are optional: artifacts of earlier versions lack them, and the report then omits the related parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.reporting.comparisons import signed
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
    """Last and best iterations of a variant's runs, one number per training seed."""

    variant: str
    last: tuple[int, ...]
    best: tuple[int | None, ...]
    """Iteration of the best held-out score of each run, the earliest on a tie; None if not measured."""


def watched(training: TrainingSettings) -> dict[str, str]:
    """Metric to title, for the metrics that can reveal reward hacking."""
    unseen = {f"heldout/{name}": f"{name}, not part of the reward" for name in training.unseen}
    return unseen | {f"heldout_images/{name}": title for name, title in IMAGE_STATISTICS.items()}


def watched_curves(sources: Mapping[str, Source], training: TrainingSettings) -> dict[str, dict[str, Curve]]:
    """Metric to variant to curve, for the metrics of `watched` that at least one variant has."""
    found = {metric: optional_curves(sources, metric) for metric in watched(training)}
    return {metric: curves for metric, curves in found.items() if curves}


def tradeoffs(
    rewards: Mapping[str, Curve], curves: Mapping[str, Mapping[str, Curve]], training: TrainingSettings
) -> dict[str, dict[str, tuple[Curve, Curve]]]:
    """Scorer outside the reward to variant to the curves of reward and score, at the iterations that have both.

    Arguments are as in `conclusion`.
    """
    return {
        name: {v: _common(rewards[v], curve) for v, curve in curves[f"heldout/{name}"].items()}
        for name in training.unseen
        if f"heldout/{name}" in curves
    }


def by_distance(sources: Mapping[str, Source]) -> dict[str, tuple[Curve, Curve]]:
    """Variant to the distance from the base and the held-out training reward, of the base and of the last policy.

    Means over the training seeds; variants without a distance are left out.
    """
    found = {}
    for variant, source in sources.items():
        values = metric_values(source)
        rewards = values.get("heldout_reward", {})
        ends = [
            (rewards[seed, 0], rewards[seed, last], distance)
            for (seed, last), distance in values.get("distance_from_base", {}).items()
            if {(seed, 0), (seed, last)} <= rewards.keys()
        ]
        if ends:
            base, tuned, distance = map(fmean, zip(*ends, strict=True))
            found[variant] = _line(0.0, distance), _line(base, tuned)
    return found


def _line(first: float, last: float) -> Curve:
    values = np.array([first, last])
    return Curve(np.arange(2), values, values, values)


def _common(first: Curve, second: Curve) -> tuple[Curve, Curve]:
    """Two curves at their common iterations."""
    a, b = np.isin(first.x, second.x), np.isin(second.x, first.x)
    return _at(first, a), _at(second, b)


def _at(curve: Curve, kept: NDArray[np.bool_]) -> Curve:
    return Curve(curve.x[kept], curve.mean[kept], curve.low[kept], curve.high[kept])


def conclusion(
    rewards: Mapping[str, Curve], curves: Mapping[str, Mapping[str, Curve]], training: TrainingSettings
) -> str:
    """Answer whether the reward is being hacked, from the first and the last held-out evaluation.

    A metric has risen or fallen if the band over the training seeds at the end lies above or below that at the start.
    `rewards` are the variants' curves of the training reward on held-out prompts, `curves` is of `watched_curves`.
    """
    if not curves:
        return ""
    unseen = [f"heldout/{name}" for name in training.unseen if f"heldout/{name}" in curves]
    signs = [
        f"{metric.removeprefix('heldout/')} falls for {variant}"
        for metric in unseen
        for variant, curve in curves[metric].items()
        if _moved(rewards[variant]) > 0 > _moved(curve)
    ]
    if signs:
        answer = f"There are signs of it: the training reward rises, but {', '.join(signs)}."
    elif unseen:
        answer = "No sign of it: no scorer outside the reward falls where the training reward rises."
    else:
        answer = "Undecided: no scorer outside the reward was evaluated during training (train.heldout.scorers)."
    changes = [
        f"{name.partition(',')[0]} by {_percent(curves[f'heldout_images/{metric}'])}"
        for metric, name in IMAGE_STATISTICS.items()
        if f"heldout_images/{metric}" in curves
    ]
    return (
        f"{answer} From the base model to the last evaluation the images change: {', '.join(changes)}."
        if changes
        else answer
    )


def _moved(curve: Curve) -> int:
    """1 if the band at the end lies above that at the start, -1 if it lies below, otherwise 0."""
    return int(curve.low[-1] > curve.high[0]) - int(curve.high[-1] < curve.low[0])


def _percent(curves: Mapping[str, Curve]) -> str:
    """Smallest and largest relative change of the variants, in percent."""
    changes = [100 * (curve.mean[-1] / curve.mean[0] - 1) for curve in curves.values() if curve.mean[0] != 0]
    ends = dict.fromkeys(f"{signed(end, 0)}" for end in (min(changes), max(changes))) if changes else {"–": None}
    return f"{' to '.join(ends)} %"


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
    best: dict[int, tuple[float, int]] = {}
    for (seed, iteration), value in values.get(training.decisive, {}).items():
        best[seed] = max((value, -iteration), best.get(seed, (value, -iteration)))
    seeds = sorted(last)
    return Ending(variant, tuple(last[s] for s in seeds), tuple(-best[s][1] if s in best else None for s in seeds))
