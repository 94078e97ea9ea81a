"""The clipped objective over any assignment of steps to chunks, and its exact gradient one step at a time.

Per trajectory b and chunk j, with the ratio r_bj of `assigned_ratio`:

    J = mean over b of mean over selected j of
        w_bj * (min(r_bj A_bj, clip(r_bj, 1 - eps_j, 1 + eps_j) A_bj) - beta * mean over t in chunk j of kl_bt)

Its special cases: one plan for all is `chunk_objective`, chunks of one step are `step_objective`, and untrained steps
are those of sliding windows and branches. Values at untrained steps and at chunks that do not exist are never read.
"""

from dataclasses import dataclass
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
    terms = _terms(log_probs, old_log_probs, advantage, clip_range, assignment, weights, selected)
    _require_kl_coef(kl_coef)
    ratio, a = terms.ratio, terms.advantage
    value = torch.minimum(ratio * a, ratio.clamp(terms.lower, terms.upper) * a)
    if kl is not None:
        value = value - kl_coef * assignment.means(kl)
    elif kl_coef > 0:
        raise ValueError(f"kl must be given when kl_coef is positive, got kl_coef {kl_coef} and no kl")
    return (value * terms.scale).sum()


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
    terms = _terms(log_probs, old_log_probs, advantage, clip_range, assignment, weights, selected)
    _require_kl_coef(kl_coef)
    ratio, a = terms.ratio, terms.advantage
    passes = ~(((a > 0) & (ratio > terms.upper)) | ((a < 0) & (ratio < terms.lower)))
    sizes = assignment.sizes.clamp(min=1).to(ratio)
    by_log_prob = a * ratio * passes * terms.scale / sizes
    by_kl = -kl_coef * terms.scale / sizes
    return assignment.spread(by_log_prob), assignment.spread(by_kl)


@dataclass(frozen=True)
class _Terms:
    """What the objective and its gradient share, per chunk; advantage and scale are 0 where not selected.

    Attributes:
        ratio: [B, Kmax].
        advantage: [B, Kmax].
        lower: 1 - eps, scalar or [Kmax].
        upper: 1 + eps, scalar or [Kmax].
        scale: w_bj / (B n_b), [B, Kmax].
    """

    ratio: Tensor
    advantage: Tensor
    lower: Tensor
    upper: Tensor
    scale: Tensor


def _terms(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantage: Tensor,
    clip_range: ClipRange,
    assignment: ChunkAssignment,
    weights: Tensor | None,
    selected: Tensor | None,
) -> _Terms:
    ratio = assigned_ratio(log_probs, old_log_probs, assignment)
    chosen = _chosen(selected, assignment).to(ratio.device)
    zero = ratio.new_zeros(())
    eps = _clip_ranges(clip_range, assignment)
    scale = chosen.to(ratio.dtype) / (chosen.sum(dim=1, keepdim=True) * len(chosen))
    if weights is not None:
        scale = scale * _weights(weights.detach().to(ratio), chosen)
    return _Terms(
        ratio=ratio,
        advantage=_advantages(advantage.detach().to(ratio), chosen).where(chosen, zero),
        lower=(1 - eps).to(ratio),
        upper=(1 + eps).to(ratio),
        scale=scale,
    )


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


def _clip_ranges(clip_range: ClipRange, assignment: ChunkAssignment) -> Tensor:
    """The epsilons in float64, a scalar or [Kmax]."""
    eps = torch.as_tensor(clip_range, dtype=torch.float64)
    if eps.ndim > 0 and eps.shape != (assignment.max_chunks,):
        raise ValueError(
            f"clip_range must be one number or have shape ({assignment.max_chunks},), got {tuple(eps.shape)}"
        )
    if not bool(((eps > 0) & (eps < 1)).all()):
        raise ValueError(f"clip_range must be in (0, 1), got {eps.tolist()}")
    return eps


def _advantages(advantage: Tensor, like: Tensor) -> Tensor:
    """Per-chunk advantages [B, Kmax]."""
    if advantage.shape not in (like.shape[:1], like.shape):
        raise ValueError(
            f"advantage must have shape {tuple(like.shape[:1])} or {tuple(like.shape)}, "
            f"got {tuple(advantage.shape)}"
        )
    return advantage.reshape(len(like), -1).expand(like.shape)


def _weights(weights: Tensor, chosen: Tensor) -> Tensor:
    """The weights of the chosen chunks, 0 elsewhere, [B, Kmax]."""
    if weights.shape != chosen.shape:
        raise ValueError(f"weights must have shape {tuple(chosen.shape)}, got {tuple(weights.shape)}")
    if not bool((weights[chosen] >= 0).all()):
        raise ValueError(f"weights of trained chunks must be at least 0, got {float(weights[chosen].min())}")
    return weights.where(chosen, weights.new_zeros(()))


def _require_kl_coef(kl_coef: float) -> None:
    if not kl_coef >= 0:
        raise ValueError(f"kl_coef must be at least 0, got {kl_coef}")
