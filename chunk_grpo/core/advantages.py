"""Group-relative advantages from rewards."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chunk_grpo.core.choices import ADVANTAGE_STDS, AdvantageStd, implemented
from chunk_grpo.core.precision import at_least_float32


@dataclass(frozen=True)
class Scale:
    """Divisor of the centred rewards: std + eps."""

    std: Callable[[Tensor], Tensor]
    """(rewards [P, G]) -> standard deviation, [P, 1] or a scalar."""
    eps: float
    """Constant that is added to the standard deviation, at least 0."""


SCALES: Mapping[AdvantageStd, Scale] = implemented(
    ADVANTAGE_STDS,
    "core/advantages.py",
    {
        # DanceGRPO's code adds 1e-8 to the standard deviation of the group, Flow-GRPO's 1e-4 to the global one.
        "group": Scale(lambda rewards: rewards.std(dim=1, correction=1, keepdim=True), 1e-8),
        "global": Scale(lambda rewards: rewards.std(correction=0), 1e-4),
    },
)


def group_advantages(rewards: Tensor, clip: float = 5.0, scale: Scale = SCALES["group"]) -> Tensor:
    """Standardise each reward within the images of its prompt.

    Paper: Eq. (4). The standard deviation is the sample's (divisor G - 1), as in released code. With the scale
    "global" the mean is still the group's, but the standard deviation is that of all rewards together
    (divisor P * G), as Flow-GRPO was first released.

    Args:
        rewards: Finite rewards [P, G], one row per prompt, G at least 2; for "global", all of an iteration.
        clip: Bound on the absolute advantage, positive.
        scale: One of `SCALES`.

    Returns:
        [P, G] in float32 or wider, within [-clip, clip]. A degenerate group gives exactly 0, so that rounding
        noise in equal rewards does not become an advantage; so do all groups when all rewards are equal.

    Raises:
        ValueError: A group smaller than 2, a reward that is not finite, or a clip out of range.
    """
    degenerate = degenerate_groups(rewards)
    if not clip > 0:
        raise ValueError(f"clip must be positive, got {clip}")
    r = at_least_float32(rewards)
    advantages = (r - r.mean(dim=1, keepdim=True)) / (scale.std(r) + scale.eps)
    return advantages.masked_fill(degenerate.unsqueeze(1), 0.0).clamp(-clip, clip)


def gain_advantages(values: Tensor, clip: float = 5.0, scale: Scale = SCALES["group"]) -> Tensor:
    """Advantages of the chunks of each image, from the rewards of the images that are predicted at their boundaries.

    Ours, after the gains of steps of DenseGRPO (arXiv 2601.20218) and Stepwise-Flow-GRPO (arXiv 2603.28718). R_ik is
    the reward of the image that is predicted at the beginning of chunk k of image i, R_iK that of the image itself:

        g_ik = R_i,k+1 - R_ik
        A_ik = (g_ik - mean over i of g_ik) / (std over i of g_ik + eps)

    The gains of an image sum to R_iK - R_i0. Each chunk has its own deviation: Eq. (4) with the gain as the chunk's
    reward. So advantages have one size in all chunks, as with the image's reward, and the setting changes which images
    are better in a chunk, not how much the chunk counts. One deviation of the R_iK for all chunks would give the chunks
    near noise the most weight: there predictions scatter most, and say least about the image.

    Args:
        values: Finite rewards [P, G, K + 1]: the K predicted images come first, the image last. G at least 2; for
            "global", all groups of an iteration.
        clip: Bound on the absolute advantage, positive.
        scale: One of `SCALES`; "global" is the deviation of all gains of a chunk.

    Returns:
        [P, G, K] in float32 or wider, within [-clip, clip]; 0 where the gains of a group differ by no more than float32
        rounding of its largest reward.

    Raises:
        ValueError: Another shape, a reward that is not finite, or as in `group_advantages`.
    """
    if values.ndim != 3 or values.shape[2] < 2 or not bool(torch.isfinite(values).all()):
        raise ValueError(f"values must be finite with shape [P, G, K + 1], K >= 1, got {values.tolist()}")
    v = at_least_float32(values)
    gains = v.diff(dim=2)
    advantages = torch.stack([group_advantages(gain, clip, scale) for gain in gains.unbind(dim=2)], dim=2)
    rounding = torch.finfo(torch.float32).eps * v.abs().amax(dim=(1, 2))  # [P]
    alike = gains.amax(dim=1) - gains.amin(dim=1) <= rounding.unsqueeze(1)  # [P, K]
    return advantages.masked_fill(alike.unsqueeze(1), 0.0)


def weighted_advantages(
    values: Tensor, weights: Sequence[float], clip: float = 5.0, scale: Scale = SCALES["group"]
) -> Tensor:
    """Advantages of several rewards: the weighted sum of each reward's own `group_advantages`.

    Each reward is standardised first, so the weights are independent of the rewards' scales. The weights are not
    normalised and the sum is not standardised again: weights that sum to 1 keep the bound of a single reward. A
    group in which one reward is degenerate learns from the others.

    Args:
        values: Finite rewards [R, P, G] of R rewards, at least 1; G at least 2.
        weights: Weight of each reward, [R], finite; a negative one reverses its reward.
        clip: Bound on each reward's absolute advantage before the sum, positive.
        scale: One of `SCALES`.

    Returns:
        [P, G] in float32 or wider, within clip * sum(abs(weights)).

    Raises:
        ValueError: The number of weights is not R, a weight is not finite, or as in `group_advantages`.
    """
    if values.ndim != 3 or len(values) == 0 or len(values) != len(weights):
        raise ValueError(
            "values must have shape [R, P, G] with one weight for each of R >= 1 rewards, "
            f"got shape {tuple(values.shape)} and {len(weights)} weights"
        )
    if not all(math.isfinite(weight) for weight in weights):
        raise ValueError(f"weights must be finite, got {list(weights)}")
    parts = [weight * group_advantages(rewards, clip, scale) for weight, rewards in zip(weights, values, strict=True)]
    return torch.stack(parts).sum(dim=0)


def gdpo_advantages(
    values: Tensor, weights: Sequence[float], clip: float = 5.0, scale: Scale = SCALES["group"]
) -> Tensor:
    """Advantages of several rewards: their weighted sum of advantages, standardised over the whole iteration.

    GDPO (arXiv 2601.05242): each reward is standardised within its group, the weighted sum over all images of the
    iteration. The clip, which is not part of it, comes last.

    Args:
        values: Finite rewards [R, P, G] of R rewards and of all images of an iteration.
        weights: Weight of each reward, [R], finite; only their ratios matter.
        clip: Bound on the absolute advantage, positive.
        scale: One of `SCALES`.

    Returns:
        [P, G] in float32 or wider, within [-clip, clip]; 0 if all groups of all rewards are degenerate.

    Raises:
        ValueError: As in `weighted_advantages`.
    """
    if not clip > 0:
        raise ValueError(f"clip must be positive, got {clip}")
    total = weighted_advantages(values, weights, math.inf, scale)
    return ((total - total.mean()) / (total.std(correction=1) + scale.eps)).clamp(-clip, clip)


def degenerate_groups(rewards: Tensor) -> Tensor:
    """Find groups with equal rewards, which give no gradient.

    Paper: Eq. (4), where its denominator is 0.

    Args:
        rewards: Finite rewards [P, G], G at least 2.

    Returns:
        bool [P]: true where the rewards differ by no more than float32 rounding of the largest one.

    Raises:
        ValueError: A group smaller than 2, or a reward that is not finite.
    """
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(f"rewards must have shape [P, G] with a group size of at least 2, got {tuple(rewards.shape)}")
    if not bool(torch.isfinite(rewards).all()):
        raise ValueError(f"rewards must be finite, got {rewards.tolist()}")
    r = at_least_float32(rewards)
    spread = r.amax(dim=1) - r.amin(dim=1)
    return spread <= torch.finfo(torch.float32).eps * r.abs().amax(dim=1)
