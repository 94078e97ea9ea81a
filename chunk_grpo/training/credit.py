"""From what images earned to how much each chunk of their trajectories is to be learnt from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from chunk_grpo.core.advantages import group_advantages, weighted_advantages
from chunk_grpo.training.method import Method
from chunk_grpo.training.rollouts import Experience

STD_EPS = {"group": 1e-8, "global": 1e-4}
"""What is added to the standard deviation: DanceGRPO's code for the group's, Flow-GRPO's for the global one."""


def advantages_of(experience: Experience, method: Method) -> Tensor:
    """Advantages of an iteration's images.

    Returns:
        [B], or [B, K] where chunks have rewards of their own; float64, within the advantage clip.
    """
    mixes = method.settings.chunk_rewards
    if mixes is None:
        return _advantages(experience, method, method.rewards)
    return torch.stack([_advantages(experience, method, mix) for mix in mixes], dim=1)


def _advantages(experience: Experience, method: Method, mix: Mapping[str, float]) -> Tensor:
    """[B] of one mix of rewards: of their weighted sum, or the weighted mean of each reward's advantages."""
    scale = method.settings.advantage_std
    eps, clip = STD_EPS[scale], method.advantage_clip
    shape = experience.rewards.shape
    parts = [torch.from_numpy(experience.parts[name]).view(shape) for name in mix]
    weights = list(mix.values())
    if method.settings.combine == "advantages":
        shares = [weight / sum(weights) for weight in weights]
        return weighted_advantages(torch.stack(parts), shares, eps, clip, scale).flatten()
    total = torch.zeros(shape, dtype=torch.float64)
    for weight, part in zip(weights, parts, strict=True):
        total += weight * part
    return group_advantages(total, eps, clip, scale).flatten()
