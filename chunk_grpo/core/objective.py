"""The objective of training, and its derivatives by each step's log-probability and KL divergence.

For trajectory b and chunk j, with the ratio r_bj of `ratios.chunk_ratio` and the n_b selected chunks of b:

    J = mean over b of mean over selected j of
        w_bj * min(r_bj A_bj, clip(r_bj, 1 - eps_j, 1 + eps_j) A_bj) - v_bj * beta * mean over t in chunk j of kl_bt

Flow-DPPO replaces the minimum by r_bj A_bj, with its gradient stopped where the sampling policy's divergence exceeds
eps_j and the ratio moves away from 1 (`masked_terms`). A new trust region is one function and one row of `TERMS`.

With one plan for all trajectories and w = v = 1 this is the paper's Eq. (13); with chunks of one step it is Eq. (5).

The formula is implemented only in this module. `gradient_coefficients` differentiates `chunk_objective`, so a change of
the formula changes training too. Two rules: J is linear in kl, and values at untrained steps and at chunks that do not
exist are never read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from chunk_grpo.core.assignment import ChunkAssignment, TrainedChunks
from chunk_grpo.core.choices import TRUST_REGIONS, TrustRegion, implemented
from chunk_grpo.core.ratios import chunk_ratio

ClipRange: TypeAlias = float | Tensor
"""One clip range for all chunks, or one for each: a tensor [Kmax]."""


@dataclass(frozen=True)
class Terms:
    """Constants of J for B trajectories of N steps, at most Kmax chunks each."""

    old_log_probs: Tensor
    """Log-probabilities under the sampling policy, [B, N]."""
    advantage: Tensor
    """Advantages A [B], or [B, Kmax] with a reward per chunk."""
    chunks: TrainedChunks
    """Chunk of each step, the selected chunks, and the weights w and v."""
    drift: Tensor | None = None
    """Divergence from the sampling policy at each step, [B, N], of which a chunk has the mean. Only the trust region
    "divergence" needs it."""


@dataclass(frozen=True)
class Bounds:
    """How far an update may go."""

    clip_range: ClipRange
    """The paper's epsilon, in (0, 1): one, or a tensor [Kmax]. With the trust region "divergence": its limit."""
    kl_coef: float = 0.0
    """The paper's beta, at least 0."""
    trust_region: TrustRegion = "clip"
    """Whether ratios are clipped, or divergences limited."""


def chunk_objective(log_probs: Tensor, terms: Terms, bounds: Bounds, kl: Tensor | None = None) -> Tensor:
    """The clipped objective J, to be maximised; the formula is at the top of the module.

    Paper: Eq. (13), with a divergence for each chunk: the mean over its steps. Eq. (9) is the case of one chunk of two
    steps. Chunks of one step give the step-level Eq. (5) and, with two steps, Eq. (8).

    Args:
        log_probs: Log-probabilities under the trained policy, [B, N].
        terms: Advantages, chunks and the sampling policy's values.
        bounds: Clip range and KL coefficient.
        kl: Divergence from the reference model at each step, [B, N]; None only if `bounds.kl_coef` is 0.

    Returns:
        Scalar: the mean over trajectories of the mean over their selected chunks. Weights do not enter the counts.

    Raises:
        ValueError: A shape or range is wrong, kl_coef is positive without kl, a row selects nothing, or a selected
            chunk does not exist.
    """
    if not bounds.kl_coef >= 0:
        raise ValueError(f"kl_coef must be at least 0, got {bounds.kl_coef}")
    chunks = terms.chunks
    ratio = chunk_ratio(log_probs, terms.old_log_probs, chunks.assignment)  # [B, Kmax]
    chosen = _chosen(chunks.selected, chunks.assignment).to(ratio.device)  # [B, Kmax]
    # What is not chosen is not read: it may be NaN.
    read = replace(terms, advantage=_per_chunk(terms.advantage, chosen, ratio))
    surrogate = TERMS[bounds.trust_region](ratio, read, bounds)  # [B, Kmax]
    value = (surrogate * _shares(chosen, chunks.weights, ratio)).sum()
    if kl is not None:
        divergence = chunks.assignment.means(kl)  # [B, Kmax]
        return value - bounds.kl_coef * (divergence * _shares(chosen, chunks.kl_weights, ratio)).sum()
    if bounds.kl_coef > 0:
        raise ValueError(f"kl must be given when kl_coef is positive, got kl_coef {bounds.kl_coef} and no kl")
    return value


def gradient_coefficients(log_probs: Tensor, terms: Terms, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Derivatives of `chunk_objective` by each step's log-probability and by each step's divergence, as constants.

    Paper: the gradient of Eq. (13) with Eq. (14). sum(coefficient * log_prob + kl_coefficient * kl) has the exact
    gradient of the objective and can be backpropagated one (sample, step) at a time, so that a chunk needs the memory
    of a single step. Autograd finds the coefficients on the two tables [B, N] alone. By hand they are
    w A r m / (B n_b cs_j) and -v beta / (B n_b cs_j) at each step of chunk j, with m = 0 where clipping stops the
    gradient and 1 elsewhere.

    Args:
        log_probs: Log-probabilities under the trained policy, [B, N].
        terms: Advantages, chunks and the sampling policy's values.
        bounds: Clip range and KL coefficient.

    Returns:
        Coefficients of log_prob and of kl, each [B, N] without gradient and 0 at steps that are untrained or not
        selected; the first are 0 also where clipped.

    Raises:
        ValueError: A shape or range is wrong, a row selects nothing, or a selected chunk does not exist.
    """
    with torch.enable_grad():
        table = log_probs.detach().requires_grad_()  # [B, N]
        kl = torch.zeros_like(table).requires_grad_()  # [B, N]; J is linear in kl, so its value is irrelevant
        value = chunk_objective(table, terms, bounds, kl)
        by_log_prob, by_kl = torch.autograd.grad(value, (table, kl), materialize_grads=True)
    return by_log_prob, by_kl


def clipped_terms(ratio: Tensor, terms: Terms, bounds: Bounds) -> Tensor:
    """The clipped surrogate of each chunk: min(r A, clip(r, 1 - eps, 1 + eps) A).

    Paper: the inner term of Eq. (5) and Eq. (13).

    Args:
        ratio: Importance ratios [B, Kmax], positive.
        terms: Advantages and chunks.
        bounds: Clip range eps.

    Returns:
        [B, Kmax], to be maximised, 0 where there is no chunk.

    Raises:
        ValueError: A shape or range is wrong.
    """
    exists = _existing(ratio, terms.chunks.assignment)
    a = _per_chunk(terms.advantage, exists, ratio)
    eps = _limits(bounds.clip_range, ratio)  # float64, so that 1 - eps and 1 + eps are rounded once
    value = torch.minimum(ratio * a, ratio.clamp((1 - eps).to(ratio), (1 + eps).to(ratio)) * a)
    return value.where(exists, value.new_zeros(()))


def masked_terms(ratio: Tensor, terms: Terms, bounds: Bounds) -> Tensor:
    """The surrogate r A of each chunk, a constant where it leaves the trust region.

    It does where the divergence exceeds the limit and the ratio of a better trajectory is above 1, or that of a worse
    one below 1. Updates that lead back keep their gradient, and so does a lucky draw within the limit.

    Source: Flow-DPPO, arXiv 2606.11025, whose loss verl-omni documents (docs/algo/flowdppo.md at a1139ba).

    Args:
        ratio: Importance ratios [B, Kmax], positive.
        terms: Advantages, chunks and drift.
        bounds: Largest divergence, as `clip_range`.

    Returns:
        [B, Kmax], to be maximised, 0 where there is no chunk.

    Raises:
        ValueError: A shape or range is wrong, or `terms` has no drift.
    """
    if terms.drift is None:
        raise ValueError("drift must be given with trust_region divergence, got none")
    exists = _existing(ratio, terms.chunks.assignment)
    a = _per_chunk(terms.advantage, exists, ratio)
    eps = _limits(bounds.clip_range, ratio).to(ratio)
    divergence = terms.chunks.assignment.means(terms.drift.detach().to(ratio))  # [B, Kmax]
    leaves = (divergence > eps) & (((a > 0) & (ratio > 1)) | ((a < 0) & (ratio < 1)))  # [B, Kmax]
    value = torch.where(leaves, ratio.detach(), ratio) * a
    return value.where(exists, value.new_zeros(()))


TERMS: Mapping[TrustRegion, Callable[[Tensor, Terms, Bounds], Tensor]] = implemented(
    TRUST_REGIONS, "core/objective.py", {"clip": clipped_terms, "divergence": masked_terms}
)
"""By choice: (ratio [B, Kmax], terms, bounds) -> surrogate of each chunk [B, Kmax]."""


def clipped_chunks(ratio: Tensor, terms: Terms, bounds: Bounds) -> Tensor:
    """Find chunks whose gradient is stopped: the surrogate does not change with the ratio.

    Paper: the derivative of the inner term of Eq. (5) and Eq. (13), which is 0 for a better trajectory that is already
    likelier than 1 + eps, and for a worse one that is rarer than 1 - eps.

    Args:
        ratio: Importance ratios [B, Kmax], positive.
        terms: Advantages, chunks and, with the trust region "divergence", drift.
        bounds: Clip range and trust region.

    Returns:
        bool [B, Kmax], false where there is no chunk.

    Raises:
        ValueError: A shape or range is wrong.
    """
    exists = _existing(ratio, terms.chunks.assignment)
    with torch.enable_grad():
        r = ratio.detach().requires_grad_()  # [B, Kmax]
        (slope,) = torch.autograd.grad(TERMS[bounds.trust_region](r, terms, bounds).sum(), r)
    return (slope == 0) & (_per_chunk(terms.advantage, exists, ratio) != 0)


def _chosen(selected: Tensor, assignment: ChunkAssignment) -> Tensor:
    """Validated mask of the trained chunks, bool [B, Kmax], at least one in each row."""
    exists = assignment.exists
    chosen = selected.to(exists.device)
    if chosen.dtype != torch.bool or chosen.shape != exists.shape:
        raise ValueError(
            f"selected must be bool with shape {tuple(exists.shape)}, got {chosen.dtype} {tuple(chosen.shape)}"
        )
    missing = (chosen & ~exists).any(dim=1)
    if bool(missing.any()):
        raise ValueError(
            f"selected must name existing chunks only, got others in the rows {missing.nonzero().flatten().tolist()}"
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
            f"advantage must have shape {tuple(where.shape[:1])} or {tuple(where.shape)}, got {tuple(advantage.shape)}"
        )
    a = advantage.detach().to(like).reshape(len(where), -1).expand(where.shape)  # [B, Kmax]
    return a.where(where, a.new_zeros(()))


def _limits(clip_range: ClipRange, like: Tensor) -> Tensor:
    """Validated eps, float64, a scalar or [Kmax]."""
    eps = torch.as_tensor(clip_range, dtype=torch.float64)
    if eps.ndim > 0 and eps.shape != like.shape[1:]:
        raise ValueError(f"clip_range must be one number or have shape {tuple(like.shape[1:])}, got {tuple(eps.shape)}")
    if not bool(((eps > 0) & (eps < 1)).all()):
        raise ValueError(f"clip_range must be in (0, 1), got {eps.tolist()}")
    return eps


def _existing(ratio: Tensor, assignment: ChunkAssignment) -> Tensor:
    """Mask of the existing chunks, bool [B, Kmax] on the device of the ratios; checks the ratios' shape."""
    exists = assignment.exists.to(ratio.device)
    if ratio.shape != exists.shape:
        raise ValueError(f"ratio must have shape {tuple(exists.shape)}, got {tuple(ratio.shape)}")
    return exists
