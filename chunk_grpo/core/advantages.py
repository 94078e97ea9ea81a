"""From rewards to group-relative advantages."""

import torch
from torch import Tensor

from chunk_grpo.core.precision import at_least_float32


def group_advantages(rewards: Tensor, eps: float = 1e-8, clip: float = 5.0) -> Tensor:
    """Standardise each reward within the images of its prompt.

    Paper: Eq. (4). The standard deviation is the sample's (divisor G - 1), as in released code.

    Args:
        rewards: Finite rewards [P, G], one row a prompt, G at least 2.
        eps: Added to the standard deviation, at least 0.
        clip: Bound on the absolute advantage, positive.

    Returns:
        [P, G] in float32 or wider, within [-clip, clip]. A degenerate group gives exactly 0, so that rounding
        noise in equal rewards does not become an advantage.

    Raises:
        ValueError: A group smaller than 2, a reward that is not finite, or eps or clip out of range.
    """
    degenerate = degenerate_groups(rewards)
    if not eps >= 0:
        raise ValueError(f"eps must be at least 0, got {eps}")
    if not clip > 0:
        raise ValueError(f"clip must be positive, got {clip}")
    r = at_least_float32(rewards)
    std = r.std(dim=1, correction=1, keepdim=True)
    advantages = (r - r.mean(dim=1, keepdim=True)) / (std + eps)
    return advantages.masked_fill(degenerate.unsqueeze(1), 0.0).clamp(-clip, clip)


def degenerate_groups(rewards: Tensor) -> Tensor:
    """Which groups have equal rewards and so teach nothing.

    Paper: Eq. (4), where its denominator is 0.

    Args:
        rewards: Finite rewards [P, G], G at least 2.

    Returns:
        bool [P]: the rewards differ by no more than float32 rounding of the largest of them.

    Raises:
        ValueError: A group smaller than 2, or a reward that is not finite.
    """
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(
            f"rewards must have shape [P, G] with a group size of at least 2, got {tuple(rewards.shape)}"
        )
    if not bool(torch.isfinite(rewards).all()):
        raise ValueError(f"rewards must be finite, got {rewards.tolist()}")
    r = at_least_float32(rewards)
    spread = r.amax(dim=1) - r.amin(dim=1)
    return spread <= torch.finfo(torch.float32).eps * r.abs().amax(dim=1)
