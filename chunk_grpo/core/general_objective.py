"""The clipped objective over any assignment of steps to chunks, and its exact gradient one step at a time.

Per trajectory b and chunk j, with the ratio r_bj of `assigned_ratio`:

    J = mean over b of mean over selected j of
        w_bj * (min(r_bj A_bj, clip(r_bj, 1 - eps_j, 1 + eps_j) A_bj) - beta * mean over t in chunk j of kl_bt)

Its special cases: one plan for all is the paper's `objective.chunk_objective`, chunks of one step are
`objective.step_objective`, and untrained steps are those of sliding windows and branches. Values at untrained steps
and at chunks that do not exist are never read.
"""

from typing import TypeAlias

import torch
from torch import Tensor

from chunk_grpo.core.assignment import ChunkAssignment
from chunk_grpo.core.ratios import assigned_ratio

ClipRange: TypeAlias = float | Tensor
"""One clip range for all chunks, or one for each: a tensor [Kmax]."""


def assigned_objective(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantage: Tensor,
    clip_range: ClipRange,
    assignment: ChunkAssignment,
    kl: Tensor | None = None,
    kl_coef: float = 0.0,
    weights: Tensor | None = None,
    selected: Tensor | None = None,
) -> Tensor:
    """The clipped objective over an assignment, to be maximised; the formula is at the top of the module.

    Args:
        log_probs: Log-probabilities under the trained policy, [B, N].
        old_log_probs: Log-probabilities under the sampling policy, [B, N].
        advantage: Advantages [B], or [B, Kmax] where chunks have rewards of their own.
        clip_range: The epsilons, each in (0, 1): one, or a tensor [Kmax].
        assignment: The chunk of each step.
        kl: Divergence from the reference model at each step, [B, N], or None.
        kl_coef: The beta, at least 0; positive only together with kl.
        weights: Weight w of each chunk's whole term, [B, Kmax], at least 0, taken as a constant; None is 1.
        selected: bool [B, Kmax], the chunks to train, at least one a row; None trains all that exist.

    Returns:
        Scalar: the mean over trajectories of the mean over their selected chunks. Weights do not enter the
        counts.

    Raises:
        ValueError: A shape or range is wrong, kl_coef is positive without kl, a row selects nothing, or a
            selected chunk does not exist.
    """
    ratio = assigned_ratio(log_probs, old_log_probs, assignment)
    chosen = _chosen(selected, assignment).to(ratio.device)
    value = clipped_terms(ratio, _advantages(advantage.detach(), chosen, ratio), clip_range, assignment)
    _require_kl_coef(kl_coef)
    if kl is not None:
        value = value - kl_coef * assignment.means(kl)
    elif kl_coef > 0:
        raise ValueError(f"kl must be given when kl_coef is positive, got kl_coef {kl_coef} and no kl")
    return (value * _scale(chosen, weights, ratio)).sum()


@torch.no_grad()
def assigned_coefficients(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantage: Tensor,
    clip_range: ClipRange,
    assignment: ChunkAssignment,
    kl_coef: float = 0.0,
    weights: Tensor | None = None,
    selected: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Derivatives of `assigned_objective` by each step's log-probability and divergence, as constants.

    With n_b selected chunks in row b and m_bj = 0 where clipping stops the gradient, they are
    w_bj A_bj r_bj m_bj / (B n_b cs_bj) and -w_bj beta / (B n_b cs_bj) at each step of chunk j. So
    sum(coefficient * log_prob + kl_coefficient * kl) has the objective's exact gradient and can be
    backpropagated one (sample, step) at a time.

    Args:
        log_probs: Log-probabilities under the trained policy, [B, N].
        old_log_probs: Log-probabilities under the sampling policy, [B, N].
        advantage: Advantages [B] or [B, Kmax].
        clip_range: The epsilons, each in (0, 1): one, or a tensor [Kmax].
        assignment: The chunk of each step.
        kl_coef: The beta, at least 0.
        weights: Weight w of each chunk's term, [B, Kmax], at least 0; None is 1.
        selected: bool [B, Kmax], the chunks to train, at least one a row; None trains all that exist.

    Returns:
        Coefficients of log_prob and of kl, each [B, N] without gradient and 0 at steps that are untrained or
        not selected; the first are 0 also where clipped.

    Raises:
        ValueError: A shape or range is wrong, a row selects nothing, or a selected chunk does not exist.
    """
    ratio = assigned_ratio(log_probs, old_log_probs, assignment)
    chosen = _chosen(selected, assignment).to(ratio.device)
    a = _advantages(advantage, chosen, ratio)
    passes = ~clipped_chunks(ratio, a, clip_range, assignment)
    per_chunk = a * ratio * passes * _scale(chosen, weights, ratio)
    by_kl = assigned_kl_coefficients(ratio, kl_coef, assignment, weights, selected)
    return _shared_by_steps(per_chunk, assignment), by_kl


@torch.no_grad()
def assigned_kl_coefficients(
    like: Tensor,
    kl_coef: float,
    assignment: ChunkAssignment,
    weights: Tensor | None = None,
    selected: Tensor | None = None,
) -> Tensor:
    """Derivative of `assigned_objective` by each step's divergence: -w_bj beta / (B n_b cs_bj).

    Clipping does not touch it.

    Args:
        like: Any floating-point tensor; it sets the dtype and the device.
        kl_coef: The beta, at least 0.
        assignment: The chunk of each step.
        weights: Weight w of each chunk's term, [B, Kmax], at least 0; None is 1.
        selected: bool [B, Kmax], the chunks to train, at least one a row; None trains all that exist.

    Returns:
        [B, N], at most 0, and 0 at steps that are untrained or not selected.

    Raises:
        ValueError: A shape or range is wrong, a row selects nothing, or a selected chunk does not exist.
    """
    _require_kl_coef(kl_coef)
    chosen = _chosen(selected, assignment).to(like.device)
    return _shared_by_steps(-kl_coef * _scale(chosen, weights, like), assignment)


def clipped_terms(
    ratio: Tensor, advantage: Tensor, clip_range: ClipRange, assignment: ChunkAssignment
) -> Tensor:
    """The clipped surrogate of each chunk: min(r A, clip(r, 1 - eps, 1 + eps) A).

    Args:
        ratio: Importance ratios [B, Kmax], positive.
        advantage: Advantages [B] or [B, Kmax].
        clip_range: The epsilons, each in (0, 1): one, or a tensor [Kmax].
        assignment: The chunk of each step.

    Returns:
        [B, Kmax], to be maximised, 0 where there is no chunk.

    Raises:
        ValueError: A shape or range is wrong.
    """
    exists = _existing(ratio, assignment)
    a = _advantages(advantage, exists, ratio)
    lower, upper = _bounds(clip_range, ratio)
    value = torch.minimum(ratio * a, ratio.clamp(lower, upper) * a)
    return value.where(exists, value.new_zeros(()))


def clipped_chunks(
    ratio: Tensor, advantage: Tensor, clip_range: ClipRange, assignment: ChunkAssignment
) -> Tensor:
    """The chunks whose gradient clipping stops: where `clipped_terms` does not move with the ratio.

    A better trajectory that is already likelier than 1 + eps, or a worse one that is rarer than 1 - eps.

    Args:
        ratio: Importance ratios [B, Kmax], positive.
        advantage: Advantages [B] or [B, Kmax].
        clip_range: The epsilons, each in (0, 1): one, or a tensor [Kmax].
        assignment: The chunk of each step.

    Returns:
        bool [B, Kmax], false where there is no chunk.

    Raises:
        ValueError: A shape or range is wrong.
    """
    exists = _existing(ratio, assignment)
    a = _advantages(advantage, exists, ratio)
    lower, upper = _bounds(clip_range, ratio)
    return exists & (((a > 0) & (ratio > upper)) | ((a < 0) & (ratio < lower)))


def _shared_by_steps(per_chunk: Tensor, assignment: ChunkAssignment) -> Tensor:
    """Each step's even part of its chunk's value, [B, N]: the derivative of a mean over the chunk."""
    return assignment.spread(per_chunk / assignment.sizes.clamp(min=1).to(per_chunk))


def _chosen(selected: Tensor | None, assignment: ChunkAssignment) -> Tensor:
    """Which chunks are trained, bool [B, Kmax], at least one in each row."""
    exists = assignment.exists
    chosen = exists if selected is None else selected.to(exists.device)
    if chosen.dtype != torch.bool or chosen.shape != exists.shape:
        raise ValueError(
            f"selected must be bool with shape {tuple(exists.shape)}, got {chosen.dtype} {tuple(chosen.shape)}"
        )
    missing = (chosen & ~exists).any(dim=1)
    if bool(missing.any()):
        raise ValueError(
            "selected must name existing chunks only, got others in the rows "
            f"{missing.nonzero().flatten().tolist()}"
        )
    empty = ~chosen.any(dim=1)
    if bool(empty.any()):
        raise ValueError(
            "every row must train at least one chunk, got none selected in the rows "
            f"{empty.nonzero().flatten().tolist()}"
        )
    return chosen


def _scale(chosen: Tensor, weights: Tensor | None, like: Tensor) -> Tensor:
    """What the term of each chunk counts in the objective, w_bj / (B n_b), [B, Kmax]; 0 where not chosen."""
    scale = chosen.to(like.dtype) / (chosen.sum(dim=1, keepdim=True) * len(chosen))
    if weights is None:
        return scale
    if weights.shape != chosen.shape:
        raise ValueError(f"weights must have shape {tuple(chosen.shape)}, got {tuple(weights.shape)}")
    w = weights.detach().to(like)
    if not bool((w[chosen] >= 0).all()):
        raise ValueError(f"weights of trained chunks must be at least 0, got {float(w[chosen].min())}")
    return scale * w.where(chosen, w.new_zeros(()))


def _advantages(advantage: Tensor, where: Tensor, like: Tensor) -> Tensor:
    """Per-chunk advantages [B, Kmax] in the dtype of `like`, 0 but for the chunks of the mask `where`."""
    if advantage.shape not in (where.shape[:1], where.shape):
        raise ValueError(
            f"advantage must have shape {tuple(where.shape[:1])} or {tuple(where.shape)}, "
            f"got {tuple(advantage.shape)}"
        )
    a = advantage.to(like).reshape(len(where), -1).expand(where.shape)
    return a.where(where, a.new_zeros(()))


def _bounds(clip_range: ClipRange, like: Tensor) -> tuple[Tensor, Tensor]:
    """1 - eps and 1 + eps, scalars or [Kmax], taken in float64 and rounded to the dtype of the ratios."""
    eps = torch.as_tensor(clip_range, dtype=torch.float64)
    if eps.ndim > 0 and eps.shape != like.shape[1:]:
        raise ValueError(
            f"clip_range must be one number or have shape {tuple(like.shape[1:])}, got {tuple(eps.shape)}"
        )
    if not bool(((eps > 0) & (eps < 1)).all()):
        raise ValueError(f"clip_range must be in (0, 1), got {eps.tolist()}")
    return (1 - eps).to(like), (1 + eps).to(like)


def _existing(ratio: Tensor, assignment: ChunkAssignment) -> Tensor:
    """Which chunks exist, bool [B, Kmax] on the device of the ratios, or an error if these do not fit."""
    exists = assignment.exists.to(ratio.device)
    if ratio.shape != exists.shape:
        raise ValueError(f"ratio must have shape {tuple(exists.shape)}, got {tuple(ratio.shape)}")
    return exists


def _require_kl_coef(kl_coef: float) -> None:
    if not kl_coef >= 0:
        raise ValueError(f"kl_coef must be at least 0, got {kl_coef}")
