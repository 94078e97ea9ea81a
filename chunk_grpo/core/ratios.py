"""Importance ratios between the policy that is trained and the one that sampled."""

from torch import Tensor

from chunk_grpo.core.chunking import ChunkPlan, chunk_means


def step_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """Importance ratio of each step.

    Paper: Eq. (6), of densities whose logarithm is the mean over latent dimensions.

    Args:
        log_probs: Log-probabilities under the trained policy, [B, N].
        old_log_probs: Log-probabilities under the sampling policy, [B, N].

    Returns:
        Ratios [B, N], positive, 1 on policy.

    Raises:
        ValueError: The shapes differ or are not [B, N].
    """
    return _log_ratio(log_probs, old_log_probs).exp()


def chunk_ratio(log_probs: Tensor, old_log_probs: Tensor, plan: ChunkPlan) -> Tensor:
    """Importance ratio of each chunk: the geometric mean of its steps' ratios.

    Paper: Eq. (14); Eq. (10) is its two-step case. Computed as exp of the mean log-ratio, which cannot
    overflow where the product would.

    Args:
        log_probs: Log-probabilities under the trained policy, [B, N].
        old_log_probs: Log-probabilities under the sampling policy, [B, N].
        plan: The chunks of the N steps.

    Returns:
        Ratios [B, K], positive, 1 on policy.

    Raises:
        ValueError: The shapes differ, are not [B, N], or N is not the plan's number of steps.
    """
    return chunk_means(_log_ratio(log_probs, old_log_probs), plan).exp()


def _log_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    if log_probs.ndim != 2 or log_probs.shape != old_log_probs.shape:
        raise ValueError(
            "log_probs and old_log_probs must share a shape [B, N], "
            f"got {tuple(log_probs.shape)} and {tuple(old_log_probs.shape)}"
        )
    return log_probs - old_log_probs
