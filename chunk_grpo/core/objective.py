"""The clipped objective at step and at chunk level, and its exact gradient one step at a time."""

import torch
from torch import Tensor

from chunk_grpo.core.chunking import ChunkPlan, chunk_means, spread_to_steps, step_plan
from chunk_grpo.core.ratios import chunk_ratio


def clipped_objective(ratio: Tensor, advantage: Tensor, clip_range: float) -> Tensor:
    """The clipped surrogate min(r A, clip(r, 1 - eps, 1 + eps) A).

    Paper: the inner term of Eq. (5) and Eq. (13).

    Args:
        ratio: Importance ratios [B, N] or [B, K], positive.
        advantage: Advantages [B], constant over the trajectory.
        clip_range: The paper's epsilon, in (0, 1).

    Returns:
        The surrogate, to be maximised, the shape of ratio.

    Raises:
        ValueError: clip_range is out of range, or the shapes do not fit.
    """
    a = _per_row(advantage, ratio)
    _require_clip_range(clip_range)
    return torch.minimum(ratio * a, ratio.clamp(1 - clip_range, 1 + clip_range) * a)


def clip_mask(ratio: Tensor, advantage: Tensor, clip_range: float) -> Tensor:
    """Where the clipped surrogate lets the gradient through.

    Paper: the derivative of the inner term of Eq. (5) and Eq. (13): clipping stops the gradient where a
    better action is already likelier than 1 + eps, or a worse one rarer than 1 - eps.

    Args:
        ratio: Importance ratios [B, N] or [B, K], positive.
        advantage: Advantages [B].
        clip_range: The paper's epsilon, in (0, 1).

    Returns:
        bool, the shape of ratio.

    Raises:
        ValueError: clip_range is out of range, or the shapes do not fit.
    """
    a = _per_row(advantage, ratio)
    _require_clip_range(clip_range)
    return ~(((a > 0) & (ratio > 1 + clip_range)) | ((a < 0) & (ratio < 1 - clip_range)))


def chunk_objective(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantage: Tensor,
    clip_range: float,
    plan: ChunkPlan,
    kl: Tensor | None = None,
    kl_coef: float = 0.0,
    selected: Tensor | None = None,
) -> Tensor:
    """The chunk-level GRPO objective, to be maximised.

    Paper: Eq. (13); Eq. (9) is its one-chunk, two-step case. The divergence of a chunk is the mean over its
    steps.

    Args:
        log_probs: Log-probabilities under the trained policy, [B, N].
        old_log_probs: Log-probabilities under the sampling policy, [B, N].
        advantage: Advantages [B].
        clip_range: The paper's epsilon, in (0, 1).
        plan: The chunks of the N steps.
        kl: Divergence from the reference model at each step, [B, N], or None.
        kl_coef: The paper's beta, at least 0; positive only together with kl.
        selected: bool [B, K], the chunks to train, at least one a row; None trains all.

    Returns:
        Scalar: the mean over trajectories of the mean over their selected chunks.

    Raises:
        ValueError: A shape or range is wrong, kl_coef is positive without kl, or a row selects nothing.
    """
    ratio = chunk_ratio(log_probs, old_log_probs, plan)
    value = clipped_objective(ratio, advantage, clip_range)
    _require_kl_coef(kl_coef)
    if kl is not None:
        value = value - kl_coef * chunk_means(kl, plan)
    elif kl_coef > 0:
        raise ValueError(f"kl must be given when kl_coef is positive, got kl_coef {kl_coef} and no kl")
    return (value * _chunk_shares(selected, ratio)).sum()


def step_objective(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantage: Tensor,
    clip_range: float,
    kl: Tensor | None = None,
    kl_coef: float = 0.0,
    selected: Tensor | None = None,
) -> Tensor:
    """The step-level GRPO objective, to be maximised: chunks of one step.

    Paper: Eq. (5); Eq. (8) is its two-step case.

    Args:
        log_probs: Log-probabilities under the trained policy, [B, N].
        old_log_probs: Log-probabilities under the sampling policy, [B, N].
        advantage: Advantages [B].
        clip_range: The paper's epsilon, in (0, 1).
        kl: Divergence from the reference model at each step, [B, N], or None.
        kl_coef: The paper's beta, at least 0; positive only together with kl.
        selected: bool [B, N], the steps to train, at least one a row; None trains all.

    Returns:
        Scalar: the mean over trajectories of the mean over their selected steps.

    Raises:
        ValueError: A shape or range is wrong, kl_coef is positive without kl, or a row selects nothing.
    """
    plan = step_plan(log_probs.shape[-1])
    return chunk_objective(log_probs, old_log_probs, advantage, clip_range, plan, kl, kl_coef, selected)


@torch.no_grad()
def gradient_coefficients(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantage: Tensor,
    clip_range: float,
    plan: ChunkPlan,
    selected: Tensor | None = None,
) -> Tensor:
    """Derivative of the chunk objective with respect to each log-probability.

    Paper: the gradient of Eq. (13) with Eq. (14): A * r_j * m_j / (B * K * cs_j) at each step of chunk j, m_j
    being `clip_mask`. With r and m known, sum(coefficient * log_prob) has the objective's exact gradient and
    can be backpropagated one (sample, step) at a time, so that a chunk needs the memory of a single step.

    Args:
        log_probs: Log-probabilities under the trained policy, [B, N].
        old_log_probs: Log-probabilities under the sampling policy, [B, N].
        advantage: Advantages [B].
        clip_range: The paper's epsilon, in (0, 1).
        plan: The chunks of the N steps; `step_plan` gives the step-level objective.
        selected: bool [B, K], the chunks to train, at least one a row; None trains all.

    Returns:
        [B, N] without gradient, 0 at steps that are clipped or not selected.

    Raises:
        ValueError: A shape or range is wrong, or a row selects nothing.
    """
    ratio = chunk_ratio(log_probs, old_log_probs, plan)
    passes = clip_mask(ratio, advantage, clip_range)
    per_chunk = _per_row(advantage, ratio) * ratio * passes * _chunk_shares(selected, ratio)
    return spread_to_steps(per_chunk / _sizes(plan, ratio), plan)


def kl_coefficients(like: Tensor, kl_coef: float, plan: ChunkPlan, selected: Tensor | None = None) -> Tensor:
    """Derivative of the chunk objective with respect to each step's divergence from the reference model.

    Paper: the gradient of the second term of Eq. (13): -beta / (B * K * cs_j). Clipping does not touch it.

    Args:
        like: Any tensor [B, N]; it sets the batch, the dtype and the device.
        kl_coef: The paper's beta, at least 0.
        plan: The chunks of the N steps.
        selected: bool [B, K], the chunks to train, at least one a row; None trains all.

    Returns:
        [B, N], at most 0, and 0 at steps that are not selected.

    Raises:
        ValueError: A shape or range is wrong, or a row selects nothing.
    """
    _require_kl_coef(kl_coef)
    per_chunk = torch.full((like.shape[0], plan.num_chunks), -kl_coef, dtype=like.dtype, device=like.device)
    return spread_to_steps(per_chunk * _chunk_shares(selected, per_chunk) / _sizes(plan, per_chunk), plan)


def _chunk_shares(selected: Tensor | None, like: Tensor) -> Tensor:
    """Weight of each chunk in the mean over trajectories and their selected chunks, [B, K], sum 1."""
    chosen = torch.ones_like(like, dtype=torch.bool) if selected is None else selected.to(like.device)
    if chosen.dtype != torch.bool or chosen.shape != like.shape:
        raise ValueError(
            f"selected must be bool with shape {tuple(like.shape)}, got {chosen.dtype} {tuple(chosen.shape)}"
        )
    counts = chosen.sum(dim=1, keepdim=True)
    if not bool((counts > 0).all()):
        raise ValueError("selected must name at least one chunk in every row, got a row with none")
    return chosen.to(like.dtype) / (counts * like.shape[0])


def _sizes(plan: ChunkPlan, like: Tensor) -> Tensor:
    return torch.tensor(plan.sizes, dtype=like.dtype, device=like.device)


def _per_row(advantage: Tensor, like: Tensor) -> Tensor:
    if like.ndim != 2 or advantage.shape != like.shape[:1]:
        raise ValueError(
            "advantage must have shape [B] for ratios [B, K], "
            f"got {tuple(advantage.shape)} and {tuple(like.shape)}"
        )
    return advantage.to(like).unsqueeze(1)


def _require_clip_range(clip_range: float) -> None:
    if not 0 < clip_range < 1:
        raise ValueError(f"clip_range must be in (0, 1), got {clip_range}")


def _require_kl_coef(kl_coef: float) -> None:
    if not kl_coef >= 0:
        raise ValueError(f"kl_coef must be at least 0, got {kl_coef}")
