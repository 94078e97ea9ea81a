"""Metrics of one iteration, by name."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chunk_grpo.training.update import UpdateStats

MetricRow = tuple[int, str, float]
"""(iteration, metric, value); iteration 0 is the base policy."""

FIDELITY_LIMIT = 0.1
"""Largest accepted 99th percentile of the fidelity, as a share of the clip range."""

QUANTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}
"""Quantiles of the fidelity, by the ends of their metrics' names."""

_LOGGER = logging.getLogger(__name__)


def finite_rows(rows: Sequence[MetricRow]) -> list[MetricRow]:
    """The rows with a finite value; a warning names the others, which no table takes: no training is lost for one."""
    left_out = [f"{name} of iteration {iteration}" for iteration, name, value in rows if not math.isfinite(value)]
    if left_out:
        _LOGGER.warning("%d metrics are not finite and left out: %s", len(left_out), ", ".join(left_out[:10]))
    return [row for row in rows if math.isfinite(row[2])]


def reward_metrics(rewards: Tensor, scores: Mapping[str, NDArray[np.float64]], advantages: Tensor) -> dict[str, float]:
    """Means and spreads of rewards, scores and advantages of an iteration.

    Args:
        rewards: [Q, G], Q groups of G images.
        scores: Values [B] of each scorer.
        advantages: Advantages [B] or [B, K].
    """
    metrics = {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "group_reward_std": float(rewards.std(dim=1).mean()),
        "degenerate_groups": float((~advantages.reshape(len(rewards), -1).any(dim=1)).sum()),
        "advantage_abs_mean": float(advantages.abs().mean()),
        "advantage_max": float(advantages.max()),
        "advantage_min": float(advantages.min()),
    }
    metrics.update({f"reward/{name}": float(values.mean()) for name, values in scores.items()})
    return metrics


def warn_of_no_advantage(iteration: int, advantages: Tensor) -> None:
    """Log a warning if all advantages are 0.

    Args:
        iteration: Number of the iteration, from 1.
        advantages: Advantages [B] or [B, K].
    """
    if not bool(advantages.any()):
        _LOGGER.warning(
            "iteration %d: the rewards are equal within every group, so nothing is learnt. Either the images have "
            "become equal (lower the learning rate), or the reward does not distinguish them.",
            iteration,
        )


def update_metrics(updates: Sequence[UpdateStats], grad_norms: Sequence[float]) -> dict[str, float]:
    """Ratios, clipping and KL divergence over the updates of an iteration.

    Args:
        updates: Statistics of each update, over all processes.
        grad_norms: Gradient norm of each update before clipping.
    """
    ratios = [stats.ratios for stats in updates]
    items = sum(len(stats.steps) for stats in updates)
    metrics = {
        "ratio_mean": sum(float(r.mean()) for r in ratios) / len(ratios),
        "ratio_min": min(float(r.min()) for r in ratios),
        "ratio_max": max(float(r.max()) for r in ratios),
        "clip_fraction": sum(float(s.clipped.double().mean()) for s in updates) / len(updates),
        "kl": sum(stats.kl_sum for stats in updates) / max(items, 1),
        "trained_steps": float(items),
        "skipped_steps": float(sum(stats.skipped for stats in updates)),
        "grad_norm": sum(grad_norms) / len(grad_norms),
    }
    chunk = torch.cat([stats.chunk for stats in updates])  # [n]
    clipped = torch.cat([stats.clipped for stats in updates])  # [n]
    for number in range(int(chunk.max()) + 1):
        drawn = chunk == number
        metrics[f"chunk_draws/{number}"] = float(drawn.sum())
        if bool(drawn.any()):
            metrics[f"chunk_clip_fraction/{number}"] = float(clipped[drawn].double().mean())
    return metrics


class StepSums:
    """Clipping and log-ratios by update and step, summed over the iterations of a training."""

    def __init__(self, updates: int, num_steps: int) -> None:
        """Start at 0.

        Args:
            updates: Number of updates of an iteration, U.
            num_steps: Number of noisy steps N.
        """
        self._sums = torch.zeros(4, updates, num_steps, dtype=torch.float64)

    def add(self, updates: Sequence[UpdateStats]) -> None:
        """Add an iteration: the statistics of each update, over all processes."""
        for number, stats in enumerate(updates):
            sums = self._sums[:, number]  # [4, N]
            sizes = stats.log_prob_change.abs().double()
            sums[:2] += stats.by_step
            sums[2] += torch.bincount(stats.steps, minlength=sums.shape[1])
            sums[3] += torch.bincount(stats.steps, sizes, minlength=sums.shape[1])

    def metrics(self) -> dict[str, float]:
        """Clipped share and mean |log-ratio| of the second update and later ones, by update and step, from 0."""
        found = {}
        for update in range(1, self._sums.shape[1]):
            for step, (selected, clipped, trained, size) in enumerate(self._sums[:, update].T.tolist()):
                if trained:
                    found[f"step_clip_fraction/{update}/{step}"] = clipped / selected
                    found[f"step_log_ratio/{update}/{step}"] = size / trained
        return found

    def state(self) -> Tensor:
        """The sums, for a checkpoint."""
        return self._sums

    def load_state(self, state: Tensor) -> None:
        """Restore the result of `state`."""
        self._sums = state.clone()


def fidelity_metrics(stats: UpdateStats, num_steps: int) -> dict[str, float]:
    """Difference between the log-probabilities of rollout and first update.

    Both use the same weights, so any difference is rounding: another batch shape or another kernel.

    Args:
        stats: Statistics of the iteration's first update.
        num_steps: Number of noisy steps N.
    """
    change = stats.log_prob_change.abs().double()
    metrics = fidelity_quantiles(change, "fidelity")
    for step in range(num_steps):
        of_step = change[stats.steps == step]
        if len(of_step):
            metrics[f"fidelity_p99/{step}"] = float(of_step.quantile(0.99))
    return metrics


def fidelity_quantiles(change: Tensor, name: str) -> dict[str, float]:
    """Median, 99th percentile and largest of absolute differences.

    Args:
        change: Differences [n] of log-probabilities under the same weights.
        name: Start of the metrics' names.
    """
    sizes = change.abs().double()
    return {f"{name}_{end}": float(sizes.quantile(share)) for end, share in QUANTILES.items()}


def warn_of_poor_fidelity(metrics: Mapping[str, float], limits: Sequence[float]) -> None:
    """Log a warning if rounding alone moves ratios by more than `FIDELITY_LIMIT` of the clip range.

    The first update takes its ratios as 1, so the fidelity of later updates counts, where there is one.

    Args:
        metrics: Metrics of an iteration.
        limits: Half widths of the trust regions of the chunks, of which the smallest counts.
    """
    smallest = min(limits)
    found = metrics.get("fidelity_later_p99", metrics["fidelity_p99"])
    if found > FIDELITY_LIMIT * smallest:
        _LOGGER.warning(
            "ratio fidelity: old and new log-probabilities differ by %.2g (p99) with the same weights, "
            "%.0f %% of the clip range %.2g. The cause is rounding: another batch shape or low precision. "
            "Ratios of later updates carry this noise; train.old_log_probs: training removes it but for that of "
            "other kernels.",
            found,
            100 * found / smallest,
            smallest,
        )


def seconds_metrics(seconds: dict[str, float], images: int) -> dict[str, float]:
    """Wall-clock metrics. The prefixes seconds_/rate_ exclude them from reproducible outputs.

    Args:
        seconds: Seconds by phase.
        images: Number of images of the iteration in this process.
    """
    metrics = {f"seconds_{name}": value for name, value in seconds.items()}
    metrics["rate_images_per_second"] = images / max(sum(seconds.values()) - seconds.get("reward", 0.0), 1e-9)
    return metrics
