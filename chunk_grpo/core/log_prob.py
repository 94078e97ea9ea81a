"""Densities of the policy's Gaussian steps: log-probability and Kullback-Leibler divergence."""

import math

from torch import Tensor

from chunk_grpo.core.precision import at_least_float32, broadcast, exact
from chunk_grpo.core.types import PerSample


def gaussian_log_prob(x_next: Tensor, mean: Tensor, std: PerSample) -> Tensor:
    """Log-density of a step, MEAN over latent dimensions.

    Paper: Eq. (6), its log p(x_{t-1} | x_t, c) divided by the number of latent dimensions; released code does
    the same and the paper's clip range belongs to it (docs/adr/0001-log-prob-mean.md).

    Args:
        x_next: Drawn state, [B, L, D].
        mean: Mean of the step, the shape of x_next.
        std: Standard deviation of the step, positive, one for all or [B].

    Returns:
        [B], in float32 or wider.

    Raises:
        ValueError: std is not positive (a step without noise has no density), or the shapes differ.
    """
    mean_square = _mean_squared_distance(x_next, mean)
    spread = _positive_std(std, mean_square)
    return -mean_square / (2 * spread.square()) - spread.log() - 0.5 * math.log(2 * math.pi)


def gaussian_kl(mean: Tensor, mean_ref: Tensor, std: PerSample) -> Tensor:
    """KL divergence of a policy step from the reference model's, in closed form, MEAN over latent dimensions.

    Both Gaussians share the standard deviation, which the sampler sets. Paper: Eq. (5), its D_KL; the closed
    form is Eq. (6) of TempFlow-GRPO (arXiv 2508.04324).

    Args:
        mean: Mean of the policy's step, [B, L, D].
        mean_ref: Mean of the reference model's step, the shape of mean.
        std: Common standard deviation, positive, one for all or [B].

    Returns:
        [B], at least 0, in float32 or wider.

    Raises:
        ValueError: std is not positive, or the shapes differ.
    """
    mean_square = _mean_squared_distance(mean, mean_ref)
    return mean_square / (2 * _positive_std(std, mean_square).square())


def _mean_squared_distance(a: Tensor, b: Tensor) -> Tensor:
    if a.shape != b.shape or a.ndim < 2:
        raise ValueError(f"states must share a shape [B, ...], got {tuple(a.shape)} and {tuple(b.shape)}")
    return (at_least_float32(a) - at_least_float32(b)).square().flatten(1).mean(1)


def _positive_std(std: PerSample, like: Tensor) -> Tensor:
    # Before it goes to the device of `like`, where the answer would have to be waited for.
    if not bool((exact(std).to(like.dtype) > 0).all()):
        raise ValueError(f"std must be positive (a step without noise has no density), got {std}")
    return broadcast(std, like)
