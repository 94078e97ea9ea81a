"""The objective of training, and its derivatives by each step's log-probability and KL divergence.

For trajectory b and chunk j, with the ratio r_bj of `ratios.chunk_ratio` and the n_b selected chunks of b:

    J = mean over b of mean over selected j of
        w_bj * min(r_bj A_bj, clip(r_bj, 1 - eps_j, 1 + eps_j) A_bj) - v_bj * beta * mean over t in chunk j of kl_bt

Flow-DPPO replaces the minimum by r_bj A_bj, with its gradient stopped where the sampling policy's divergence exceeds
eps_j and the ratio moves away from 1 (`masked_terms`).

With one plan for all trajectories and w = v = 1 this is the paper's Eq. (13); with chunks of one step it is Eq. (5).

The formula is implemented only in this module. `gradient_coefficients` differentiates `chunk_objective`, so a change of
the formula changes training too. Two rules: J is linear in kl, and values at untrained steps and at chunks that do not
exist are never read.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from chunk_grpo.core.assignment import ChunkAssignment
from chunk_grpo.core.choices import TRUST_REGIONS, TrustRegion, implemented
from chunk_grpo.core.ratios import chunk_ratio

ClipRange: TypeAlias = float | Tensor
"""One clip range for all chunks, or one for each: a tensor [Kmax]."""


def chunk_objective(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantage: Tensor,
    clip_range: ClipRange,
    assignment: ChunkAssignment,
    kl: Tensor | None = None,
    kl_coef: float = 0.0,
    weights: Tensor | None = None,
    selected: Tensor | None = None,
    kl_weights: Tensor | None = None,
    drift: Tensor | None = None,
) -> Tensor:
    """The clipped objective J, to be maximised; the formula is at the top of the module.

    Paper: Eq. (13), with a divergence for each chunk: the mean over its steps. Eq. (9) is the case of one chunk of two
    steps. Chunks of one step give the step-level Eq. (5) and, with two steps, Eq. (8).

    Args:
        log_probs: Log-probabilities under the trained policy, [B, N].
        old_log_probs: Log-probabilities under the sampling policy, [B, N].
        advantage: Advantages [B], or [B, Kmax] with a reward per chunk; constants.
        clip_range: The paper's epsilon, in (0, 1): one, or a tensor [Kmax].
        assignment: The chunk of each step.
        kl: Divergence from the reference model at each step, [B, N], or None.
        kl_coef: The paper's beta, at least 0; positive only together with kl.
        weights: Weight w of each chunk's clipped term, [B, Kmax], at least 0, a constant; None is 1.
        selected: bool [B, Kmax], the chunks to train, at least one a row; None trains all that exist.
        kl_weights: Weight v of each chunk's divergence, like `weights`.
        drift: Divergence from the sampling policy at each step, [B, N], a constant, which bounds the update in place
            of the clip; a chunk's is the mean over its steps. None: the ratio is clipped.

    Returns:
        Scalar: the mean over trajectories of the mean over their selected chunks. Weights do not enter the counts.

    Raises:
        ValueError: A shape or range is wrong, kl_coef is positive without kl, a row selects nothing, or a selected
            chunk does not exist.
    """
    if not kl_coef >= 0:
        raise ValueError(f"kl_coef must be at least 0, got {kl_coef}")
    ratio = chunk_ratio(log_probs, old_log_probs, assignment)  # [B, Kmax]
    chosen = _chosen(selected, assignment).to(ratio.device)  # [B, Kmax]
    a = _per_chunk(advantage.detach(), chosen, ratio)
    terms = bounded_terms(ratio, a, clip_range, assignment, drift)
    value = (terms * _shares(chosen, weights, ratio)).sum()
    if kl is not None:
        return value - kl_coef * (assignment.means(kl) * _shares(chosen, kl_weights, ratio)).sum()
    if kl_coef > 0:
        raise ValueError(f"kl must be given when kl_coef is positive, got kl_coef {kl_coef} and no kl")
    return value


def gradient_coefficients(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantage: Tensor,
    clip_range: ClipRange,
    assignment: ChunkAssignment,
    kl_coef: float = 0.0,
    weights: Tensor | None = None,
    selected: Tensor | None = None,
    kl_weights: Tensor | None = None,
    drift: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Derivatives of `chunk_objective` by each step's log-probability and by each step's divergence, as constants.

    Paper: the gradient of Eq. (13) with Eq. (14). sum(coefficient * log_prob + kl_coefficient * kl) has the exact
    gradient of the objective and can be backpropagated one (sample, step) at a time, so that a chunk needs the memory
    of a single step. Autograd finds the coefficients on the two tables [B, N] alone. By hand they are
    w A r m / (B n_b cs_j) and -v beta / (B n_b cs_j) at each step of chunk j, with m = 0 where clipping stops the
    gradient and 1 elsewhere.

    Args:
        log_probs: Log-probabilities under the trained policy, [B, N].
        old_log_probs: Log-probabilities under the sampling policy, [B, N].
        advantage: Advantages [B] or [B, Kmax].
        clip_range: The paper's epsilon, in (0, 1): one, or a tensor [Kmax].
        assignment: The chunk of each step.
        kl_coef: The paper's beta, at least 0.
        weights: Weight w of each chunk's clipped term, [B, Kmax], at least 0; None is 1.
        selected: bool [B, Kmax], the chunks to train, at least one a row; None trains all that exist.
        kl_weights: Weight v of each chunk's divergence, like `weights`.
        drift: Divergence from the sampling policy at each step, [B, N], in place of the clip; None: the clip.

    Returns:
        Coefficients of log_prob and of kl, each [B, N] without gradient and 0 at steps that are untrained or not
        selected; the first are 0 also where clipped.

    Raises:
        ValueError: A shape or range is wrong, a row selects nothing, or a selected chunk does not exist.
    """
    with torch.enable_grad():
        table = log_probs.detach().requires_grad_()  # [B, N]
        kl = torch.zeros_like(table).requires_grad_()  # [B, N]; J is linear in kl, so its value is irrelevant
        value = chunk_objective(
            table,
            old_log_probs.detach(),
            advantage,
            clip_range,
            assignment,
            kl,
            kl_coef,
            weights,
            selected,
            kl_weights,
            drift,
        )
        by_log_prob, by_kl = torch.autograd.grad(value, (table, kl), materialize_grads=True)
    return by_log_prob, by_kl


def bounded_terms(
    ratio: Tensor, advantage: Tensor, clip_range: ClipRange, assignment: ChunkAssignment, drift: Tensor | None
) -> Tensor:
    """`masked_terms` by the mean of `drift` [B, N] over each chunk, or `clipped_terms` without it; [B, Kmax]."""
    if drift is None:
        return TERMS["clip"](ratio, advantage, clip_range, assignment, ratio)
    divergence = assignment.means(drift.detach().to(ratio))  # [B, Kmax]
    return TERMS["divergence"](ratio, advantage, clip_range, assignment, divergence)


def masked_terms(
    ratio: Tensor, advantage: Tensor, limit: ClipRange, assignment: ChunkAssignment, divergence: Tensor
) -> Tensor:
    """The surrogate r A of each chunk, a constant where it leaves the trust region.

    It does where the divergence exceeds the limit and the ratio of a better trajectory is above 1, or that of a worse
    one below 1. Updates that lead back keep their gradient, and so does a lucky draw within the limit.

    Source: Flow-DPPO, arXiv 2606.11025, whose loss verl-omni documents (docs/algo/flowdppo.md at a1139ba).

    Args:
        ratio: Importance ratios [B, Kmax], positive.
        advantage: Advantages [B] or [B, Kmax].
        limit: Largest divergence, in (0, 1): one, or a tensor [Kmax].
        assignment: The chunk of each step.
        divergence: Divergence from the sampling policy [B, Kmax], a constant.

    Returns:
        [B, Kmax], to be maximised, 0 where there is no chunk.

    Raises:
        ValueError: A shape or range is wrong.
    """
    exists = _existing(ratio, assignment)
    a = _per_chunk(advantage, exists, ratio)
    eps = _limits(limit, ratio).to(ratio)
    leaves = (divergence > eps) & (((a > 0) & (ratio > 1)) | ((a < 0) & (ratio < 1)))  # [B, Kmax]
    value = torch.where(leaves, ratio.detach(), ratio) * a
    return value.where(exists, value.new_zeros(()))


def clipped_terms(
    ratio: Tensor, advantage: Tensor, clip_range: ClipRange, assignment: ChunkAssignment
) -> Tensor:
    """The clipped surrogate of each chunk: min(r A, clip(r, 1 - eps, 1 + eps) A).

    Paper: the inner term of Eq. (5) and Eq. (13).

    Args:
        ratio: Importance ratios [B, Kmax], positive.
        advantage: Advantages [B] or [B, Kmax].
        clip_range: The paper's epsilon, in (0, 1): one, or a tensor [Kmax].
        assignment: The chunk of each step.

    Returns:
        [B, Kmax], to be maximised, 0 where there is no chunk.

    Raises:
        ValueError: A shape or range is wrong.
    """
    exists = _existing(ratio, assignment)
    a = _per_chunk(advantage, exists, ratio)
    lower, upper = _bounds(clip_range, ratio)
    value = torch.minimum(ratio * a, ratio.clamp(lower, upper) * a)
    return value.where(exists, value.new_zeros(()))


TERMS: Mapping[TrustRegion, Callable[[Tensor, Tensor, ClipRange, ChunkAssignment, Tensor], Tensor]] = (
    implemented(
        TRUST_REGIONS,
        "core/objective.py",
        {
            "clip": lambda ratio, advantage, eps, assignment, _: clipped_terms(
                ratio, advantage, eps, assignment
            ),
            "divergence": masked_terms,
        },
    )
)
"""By choice: (ratio [B, Kmax], advantage, limit, chunks, divergence [B, Kmax]) -> terms [B, Kmax]."""


def clipped_chunks(
    ratio: Tensor,
    advantage: Tensor,
    clip_range: ClipRange,
    assignment: ChunkAssignment,
    drift: Tensor | None = None,
) -> Tensor:
    """Find chunks whose gradient is stopped: `bounded_terms` does not change with the ratio.

    Paper: the derivative of the inner term of Eq. (5) and Eq. (13), which is 0 for a better trajectory that is already
    likelier than 1 + eps, and for a worse one that is rarer than 1 - eps.

    Args:
        ratio: Importance ratios [B, Kmax], positive.
        advantage: Advantages [B] or [B, Kmax].
        clip_range: The paper's epsilon, in (0, 1): one, or a tensor [Kmax].
        assignment: The chunk of each step.
        drift: Divergence from the sampling policy at each step, [B, N], in place of the clip; None: the clip.

    Returns:
        bool [B, Kmax], false where there is no chunk.

    Raises:
        ValueError: A shape or range is wrong.
    """
    exists = _existing(ratio, assignment)
    with torch.enable_grad():
        r = ratio.detach().requires_grad_()  # [B, Kmax]
        terms = bounded_terms(r, advantage, clip_range, assignment, drift)
        (slope,) = torch.autograd.grad(terms.sum(), r)
    return (slope == 0) & (_per_chunk(advantage, exists, ratio) != 0)


def _chosen(selected: Tensor | None, assignment: ChunkAssignment) -> Tensor:
    """Validated mask of the trained chunks, bool [B, Kmax], at least one in each row."""
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


def _shares(chosen: Tensor, weights: Tensor | None, like: Tensor) -> Tensor:
    """Weight of each chunk's term in the two means of J, w_bj / (B n_b), [B, Kmax]; 0 where not chosen."""
    shares = chosen.to(like.dtype) / (chosen.sum(dim=1, keepdim=True) * len(chosen))
    if weights is None:
        return shares
    if weights.shape != chosen.shape:
        raise ValueError(f"weights must have shape {tuple(chosen.shape)}, got {tuple(weights.shape)}")
    w = weights.detach().to(like)
    if not bool((w[chosen] >= 0).all()):
        raise ValueError(f"weights of trained chunks must be at least 0, got {float(w[chosen].min())}")
    return shares * w.where(chosen, w.new_zeros(()))


def _per_chunk(advantage: Tensor, where: Tensor, like: Tensor) -> Tensor:
    """Advantages [B, Kmax] in the dtype of `like`, 0 outside the mask `where`."""
    if advantage.shape not in (where.shape[:1], where.shape):
        raise ValueError(
            f"advantage must have shape {tuple(where.shape[:1])} or {tuple(where.shape)}, "
            f"got {tuple(advantage.shape)}"
        )
    a = advantage.to(like).reshape(len(where), -1).expand(where.shape)  # [B, Kmax]
    return a.where(where, a.new_zeros(()))


def _bounds(clip_range: ClipRange, like: Tensor) -> tuple[Tensor, Tensor]:
    """1 - eps and 1 + eps, scalars or [Kmax], computed in float64 and rounded to the dtype of the ratios."""
    eps = _limits(clip_range, like)
    return (1 - eps).to(like), (1 + eps).to(like)


def _limits(clip_range: ClipRange, like: Tensor) -> Tensor:
    """Validated eps, float64, a scalar or [Kmax]."""
    eps = torch.as_tensor(clip_range, dtype=torch.float64)
    if eps.ndim > 0 and eps.shape != like.shape[1:]:
        raise ValueError(
            f"clip_range must be one number or have shape {tuple(like.shape[1:])}, got {tuple(eps.shape)}"
        )
    if not bool(((eps > 0) & (eps < 1)).all()):
        raise ValueError(f"clip_range must be in (0, 1), got {eps.tolist()}")
    return eps


def _existing(ratio: Tensor, assignment: ChunkAssignment) -> Tensor:
    """Mask of the existing chunks, bool [B, Kmax] on the device of the ratios; checks the ratios' shape."""
    exists = assignment.exists.to(ratio.device)
    if ratio.shape != exists.shape:
        raise ValueError(f"ratio must have shape {tuple(exists.shape)}, got {tuple(ratio.shape)}")
    return exists
