"""The numbers that one iteration leaves behind, by name."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chunk_grpo.core.advantages import degenerate_groups
from chunk_grpo.core.objective import ClipRange
from chunk_grpo.training.update import UpdateStats

MetricRow = tuple[int, str, float]
"""(iteration, metric, value); iteration 0 is the base policy."""

FIDELITY_LIMIT = 0.1
"""Share of the clip range above which the rollout's log-probabilities are too far from the update's."""

_LOGGER = logging.getLogger(__name__)


def reward_metrics(
    rewards: Tensor, scores: Mapping[str, NDArray[np.float64]], advantages: Tensor
) -> dict[str, float]:
    """Means and spreads of an iteration's images.

    Args:
        rewards: [Q, M], Q groups of M images.
        scores: Scorer to its values [B].
        advantages: [B] or [B, K].
    """
    metrics = {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "group_reward_std": float(rewards.std(dim=1).mean()),
        "degenerate_groups": float(degenerate_groups(rewards).sum()),
        "advantage_abs_mean": float(advantages.abs().mean()),
        "advantage_max": float(advantages.max()),
        "advantage_min": float(advantages.min()),
    }
    metrics.update({f"reward/{name}": float(values.mean()) for name, values in scores.items()})
    return metrics


def warn_of_no_advantage(iteration: int, advantages: Tensor) -> None:
    """Say so when there is nothing to learn from: the rewards are equal within every group."""
    if not bool(advantages.any()):
        _LOGGER.warning(
            "iteration %d: the rewards are equal within every group, so nothing is learnt. Either the images have "
            "become the same (lower train.learning_rate), or the reward does not tell them apart.",
            iteration,
        )


def update_metrics(updates: Sequence[UpdateStats], grad_norms: Sequence[float]) -> dict[str, float]:
    """Ratios, clipping and divergence over an iteration's updates."""
    ratios = [stats.ratios for stats in updates]
    items = sum(len(stats.steps) for stats in updates)
    metrics = {
        "ratio_mean": sum(float(r.mean()) for r in ratios) / len(ratios),
        "ratio_min": min(float(r.min()) for r in ratios),
        "ratio_max": max(float(r.max()) for r in ratios),
        "clip_fraction": sum(float(s.clipped.double().mean()) for s in updates) / len(updates),
        "kl": sum(stats.kl_sum for stats in updates) / max(items, 1),
        "trained_steps": float(items),
        "grad_norm": sum(grad_norms) / len(grad_norms),
    }
    chunk = torch.cat([stats.chunk for stats in updates])
    clipped = torch.cat([stats.clipped for stats in updates])
    for number in range(int(chunk.max()) + 1):
        drawn = chunk == number
        metrics[f"chunk_draws/{number}"] = float(drawn.sum())
        if bool(drawn.any()):
            metrics[f"chunk_clip_fraction/{number}"] = float(clipped[drawn].double().mean())
    return metrics


def fidelity_metrics(stats: UpdateStats, num_steps: int) -> dict[str, float]:
    """How far the rollout's log-probabilities are from the update's, before anything was learnt.

    Both come from the same weights, so a difference is rounding: another batch shape, another kernel.

    Args:
        stats: Of the first update, whose ratios are 1 by definition.
        num_steps: Number of noisy steps N.
    """
    change = stats.log_prob_change.abs().double()
    metrics = {"fidelity_p99": float(change.quantile(0.99))}
    for step in range(num_steps):
        of_step = change[stats.steps == step]
        if len(of_step):
            metrics[f"fidelity_mean/{step}"] = float(of_step.mean())
            metrics[f"fidelity_p99/{step}"] = float(of_step.quantile(0.99))
    return metrics


def warn_of_poor_fidelity(metrics: dict[str, float], clip_range: ClipRange) -> None:
    """Say so when rounding alone moves ratios by a good part of the clip range."""
    smallest = float(torch.as_tensor(clip_range).min())
    share = metrics["fidelity_p99"] / smallest
    if share > FIDELITY_LIMIT:
        _LOGGER.warning(
            "ratio fidelity: the log-probabilities of the rollout and those of the update differ by %.2g (p99) with "
            "the same weights, %.0f %% of the clip range %.2g: rounding of another batch shape or a low precision. "
            "Ratios of later updates carry this noise; set train.old_log_probs: training to remove it.",
            metrics["fidelity_p99"],
            100 * share,
            smallest,
        )


def seconds_metrics(seconds: dict[str, float], images: int) -> dict[str, float]:
    """Where the time went. Their names begin with seconds_ or rate_, which keeps them out of what is compared."""
    metrics = {f"seconds_{name}": value for name, value in seconds.items()}
    metrics["rate_images_per_second"] = images / max(sum(seconds.values()) - seconds.get("reward", 0.0), 1e-9)
    return metrics
