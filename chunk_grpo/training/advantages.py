"""Rewards and advantages of an iteration's images, from the scorers' values."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from chunk_grpo.core.advantages import group_advantages, weighted_advantages
from chunk_grpo.scorers.reward import weighted_sum
from chunk_grpo.training.method import Method
from chunk_grpo.training.rollouts import Experience

STD_EPS = {"group": 1e-8, "global": 1e-4}
"""Added to the standard deviation: as DanceGRPO's code does to that of the group, and Flow-GRPO's to the global one."""


def rewards_of(experience: Experience, weights: Mapping[str, float]) -> Tensor:
    """Rewards of the images: the weighted sum of the scorers' values.

    Args:
        experience: Q groups of M images.
        weights: Scorer to its weight.

    Returns:
        float64 [Q, M].
    """
    return torch.from_numpy(weighted_sum(experience.scores, weights)).view(-1, experience.group_size)


def advantages_of(experience: Experience, weights: Mapping[str, float], method: Method) -> Tensor:
    """Advantages of an iteration's images.

    Args:
        experience: All images of the iteration.
        weights: Scorer to its weight, for a method without rewards for each chunk.
        method: How rewards are standardised and combined.

    Returns:
        [B], or [B, K] where chunks have rewards of their own; float64, within the advantage clip.
    """
    mixes = method.settings.chunk_rewards
    if mixes is None:
        return _advantages(experience, weights, method)
    return torch.stack([_advantages(experience, mix, method) for mix in mixes], dim=1)


def _advantages(experience: Experience, weights: Mapping[str, float], method: Method) -> Tensor:
    """[B] of one mix of rewards: of their weighted sum, or the weighted mean of each reward's advantages."""
    scale = method.settings.advantage_std
    eps, clip = STD_EPS[scale], method.advantage_clip
    if method.settings.combine == "advantages":
        each = torch.stack([rewards_of(experience, {name: 1.0}) for name in weights])  # [R, Q, M]
        shares = [weight / sum(weights.values()) for weight in weights.values()]
        return weighted_advantages(each, shares, eps, clip, scale).flatten()
    return group_advantages(rewards_of(experience, weights), eps, clip, scale).flatten()
