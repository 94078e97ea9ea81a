"""Importance ratios between the trained policy and the sampling policy."""

from collections.abc import Callable, Mapping

from torch import Tensor

from chunk_grpo.core.assignment import ChunkAssignment
from chunk_grpo.core.choices import RATIO_NORMS, RatioNorm, implemented


def chunk_ratio(log_probs: Tensor, old_log_probs: Tensor, assignment: ChunkAssignment) -> Tensor:
    """Importance ratio of each chunk: the geometric mean of its steps' ratios.

    Paper: Eq. (14); Eq. (10) is its case of two steps and Eq. (6) that of one. Densities are those whose logarithm is
    the mean over latent dimensions. Computed as exp of the mean log-ratio, which cannot overflow where the product
    would.

    Args:
        log_probs: Log-probabilities under the trained policy, [B, N]; untrained steps are not read.
        old_log_probs: Log-probabilities under the sampling policy, [B, N].
        assignment: The chunk of each step.

    Returns:
        Ratios [B, Kmax], positive, 1 on policy and where there is no chunk.

    Raises:
        ValueError: The shapes differ or are not the assignment's [B, N].
    """
    return assignment.means(_log_ratio(log_probs, old_log_probs)).exp()


def guard_log_ratio(log_probs: Tensor, old_log_probs: Tensor, drift: Tensor, std: Tensor) -> Tensor:
    """Log-ratio of each step, centred and scaled equally over the steps: std * (log r + drift).

    RatioNorm of GRPO-Guard (arXiv 2510.22319), as in its authors' code (yifan123/flow_grpo, whose issue 244 states
    that the drift is per sample) and the documentation of verl-omni. For x = mean_old + std * z drawn from
    the old policy, dmu = mean - mean_old and averages over latent dimensions, log r = mean(z * dmu) / std - drift:
    its expectation is -drift, below 0, and its spread has a factor 1 / std. The result is mean(z * dmu): zero on
    average, without std. Clip ranges belong to this scale.

    A chunk's ratio is exp of the mean over its steps: give this result as log_probs and zeros as old_log_probs.
    By the chain rule a coefficient c of the result is std * c for log_prob and for drift, which has a gradient
    too. The other part of GRPO-Guard, a factor 1 / (t - t_next) on each step's term, is `interval_weights`.

    Args:
        log_probs: Log-probabilities under the trained policy, [B, N], means over latent dimensions.
        old_log_probs: Log-probabilities under the sampling policy, [B, N].
        drift: `gaussian_kl` of the step's mean from the old policy's, [B, N]: mean(dmu^2) / (2 std^2).
        std: Standard deviation of each step's transition, [N] or [B, N]; 0 at untrained steps without noise.

    Returns:
        Normalised log-ratios [B, N], 0 on policy.

    Raises:
        ValueError: A shape is wrong or std is negative.
    """
    log_ratio = _log_ratio(log_probs, old_log_probs)
    if drift.shape != log_ratio.shape or std.shape not in (log_ratio.shape, log_ratio.shape[1:]):
        raise ValueError(
            f"drift must have shape {tuple(log_ratio.shape)} and std that or [N], "
            f"got {tuple(drift.shape)} and {tuple(std.shape)}"
        )
    if not bool((std >= 0).all()):
        raise ValueError(f"std must be at least 0, got {std.tolist()}")
    return std.to(log_ratio) * (log_ratio + drift)


NORMALISED: Mapping[RatioNorm, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None] = implemented(
    RATIO_NORMS, "core/ratios.py", {"none": None, "guard": guard_log_ratio}
)
"""By choice: (log_probs, old_log_probs, drift, std) -> normalised log-ratios [B, N]; None: plain log-probabilities."""


def _log_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    if log_probs.ndim != 2 or log_probs.shape != old_log_probs.shape:
        raise ValueError(
            "log_probs and old_log_probs must share a shape [B, N], "
            f"got {tuple(log_probs.shape)} and {tuple(old_log_probs.shape)}"
        )
    return log_probs - old_log_probs
