"""The paper's objective at step and at chunk level: one plan for all trajectories.

The formulas themselves stand in `general_objective`; each function here is a case of one there.
"""

from torch import Tensor

from chunk_grpo.core.assignment import ChunkAssignment
from chunk_grpo.core.chunking import ChunkPlan, step_plan
from chunk_grpo.core.general_objective import (
    assigned_coefficients,
    assigned_kl_coefficients,
    assigned_objective,
    clipped_chunks,
    clipped_terms,
)


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
    return clipped_terms(ratio, advantage, clip_range, _column_by_column(ratio))


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
    return ~clipped_chunks(ratio, advantage, clip_range, _column_by_column(ratio))


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
    assignment = _shared(plan, log_probs)
    return assigned_objective(
        log_probs, old_log_probs, advantage, clip_range, assignment, kl, kl_coef, selected=selected
    )


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
    assignment = _shared(plan, log_probs)
    by_log_prob, _ = assigned_coefficients(
        log_probs, old_log_probs, advantage, clip_range, assignment, selected=selected
    )
    return by_log_prob


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
    return assigned_kl_coefficients(like, kl_coef, _shared(plan, like), selected=selected)


def _shared(plan: ChunkPlan, like: Tensor) -> ChunkAssignment:
    """The plan for each row of a tensor [B, ...]."""
    return ChunkAssignment.shared(plan, len(like))


def _column_by_column(ratio: Tensor) -> ChunkAssignment:
    """Each column of ratios [B, K] a chunk of its own."""
    if ratio.ndim != 2:
        raise ValueError(f"ratio must have shape [B, N] or [B, K], got {tuple(ratio.shape)}")
    return _shared(step_plan(ratio.shape[1]), ratio)
