"""Rewards and advantages of an iteration's images, from the scorers' values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from chunk_grpo.core.advantages import SCALES, gain_advantages, gdpo_advantages, group_advantages, weighted_advantages
from chunk_grpo.core.choices import COMBINATIONS, CREDITS, Combine, Credit, implemented
from chunk_grpo.scorers.reward import weighted_sum
from chunk_grpo.training.method import Method
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.rollouts import Experience


def rewards_of(experience: Experience, weights: Mapping[str, float]) -> Tensor:
    """Rewards of the images: the weighted sum of the scorers' values.

    Args:
        experience: Q groups of G images.
        weights: Weight of each scorer.

    Returns:
        float64 [Q, G].
    """
    return torch.from_numpy(weighted_sum(experience.scores, weights)).view(-1, experience.group_size)


def advantages_of(experience: Experience, weights: Mapping[str, float], method: Method) -> Tensor:
    """Advantages of an iteration's images.

    Args:
        experience: All images of the iteration.
        weights: Weight of each scorer. Ignored if `method.variant.chunk_rewards` is set.
        method: Settings of standardisation and combination.

    Returns:
        float64 [B], or [B, K] with rewards or gains by chunk; absolute values are at most `method.advantage_clip`.
    """
    return CREDITED[method.variant.credit](experience, weights, method)


def _of_images(experience: Experience, weights: Mapping[str, float], method: Method) -> Tensor:
    """Advantages [B] by the images' rewards, or [B, K] with rewards by chunk."""
    combined = COMBINED[method.variant.combine]
    if method.variant.chunk_rewards is None:
        return combined(experience, weights, method).flatten()
    return torch.stack([combined(experience, mix, method).flatten() for mix in method.variant.chunk_rewards], dim=1)


def _of_gains(experience: Experience, weights: Mapping[str, float], method: Method) -> Tensor:
    """Advantages [B, K] by the chunks' gains in the weighted sum."""
    predicted = torch.from_numpy(weighted_sum(experience.predicted, weights))  # [B, K]
    values = predicted.view(-1, experience.group_size, predicted.shape[1])  # [Q, G, K]
    values = torch.cat([values, rewards_of(experience, weights).unsqueeze(2)], dim=2)
    return gain_advantages(values, method.advantage_clip, SCALES[method.variant.advantage_std]).flatten(0, 1)


CREDITED: Mapping[Credit, Callable[[Experience, Mapping[str, float], Method], Tensor]] = implemented(
    CREDITS, "training/advantages.py", {"image": _of_images, "chunk-gains": _of_gains}
)


def _of_weighted_sum(experience: Experience, weights: Mapping[str, float], method: Method) -> Tensor:
    """Advantages [Q, G] of the weighted sum."""
    rewards = rewards_of(experience, weights)  # [Q, G]
    return group_advantages(rewards, method.advantage_clip, SCALES[method.variant.advantage_std])


def _weighted_mean(experience: Experience, weights: Mapping[str, float], method: Method) -> Tensor:
    """Weighted mean of the advantages of the single rewards, [Q, G]."""
    shares = [weight / sum(weights.values()) for weight in weights.values()]
    each = _each_reward(experience, weights)
    return weighted_advantages(each, shares, method.advantage_clip, SCALES[method.variant.advantage_std])


def _gdpo(experience: Experience, weights: Mapping[str, float], method: Method) -> Tensor:
    """Advantages [Q, G] as in GDPO."""
    each, scale = _each_reward(experience, weights), SCALES[method.variant.advantage_std]
    return gdpo_advantages(each, list(weights.values()), method.advantage_clip, scale)


def _each_reward(experience: Experience, weights: Mapping[str, float]) -> Tensor:
    """The rewards [R, Q, G] of R scorers."""
    return torch.stack([rewards_of(experience, {name: 1.0}) for name in weights])


COMBINED: Mapping[Combine, Callable[[Experience, Mapping[str, float], Method], Tensor]] = implemented(
    COMBINATIONS, "training/advantages.py", {"rewards": _of_weighted_sum, "advantages": _weighted_mean, "gdpo": _gdpo}
)


def of_all_processes(
    experience: Experience, starts: Sequence[int], images: int, processes: Processes
) -> tuple[Experience, Tensor]:
    """The experience with the scores of all processes, and the rows of this process in it, int64 [B].

    Args:
        experience: This process's images.
        starts: Numbers of this process's starts.
        images: Images of a start.
        processes: All processes.
    """
    own = torch.tensor([start * images + image for start in starts for image in range(images)])
    where = np.argsort(torch.cat(processes.gather([own])).numpy())
    everywhere = [
        {name: np.concatenate(processes.gather([values]))[where] for name, values in own_scores.items()}
        for own_scores in (experience.scores, experience.predicted)
    ]
    return replace(experience, scores=everywhere[0], predicted=everywhere[1]), own
