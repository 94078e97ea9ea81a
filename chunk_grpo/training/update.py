"""The exact gradient of the clipped chunk objective with the memory of single steps.

The objective's gradient is a weighted sum of the gradients of single-step log-probabilities, whose weights need only
the ratios. So a first pass without gradients finds the ratios, and a second pass back-propagates (sample, step) items
one micro-batch at a time, in any packing. On the first update after a rollout every ratio is 1 and the first pass is
left out. Both passes must be the same computation: same dtype, no dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from chunk_grpo.core.chunking import ChunkPlan
from chunk_grpo.core.log_prob import gaussian_kl, gaussian_log_prob
from chunk_grpo.core.objective import clip_mask, gradient_coefficients, kl_coefficients
from chunk_grpo.core.ratios import chunk_ratio
from chunk_grpo.core.sde import sde_transition
from chunk_grpo.core.types import Transition
from chunk_grpo.families.base import Conditioning

PolicyVelocity = Callable[[Tensor, Tensor, Conditioning], Tensor]
"""(x [N, L, D], t [N], conditioning of N prompts) -> velocity [N, L, D]."""


@dataclass(frozen=True)
class StepGrid:
    """The sampling grid of the rollouts: `times` [S + 1] and the noisy steps' `diffusion_coefs` [S - 1]."""

    times: Tensor
    diffusion_coefs: Tensor


@dataclass(frozen=True)
class UpdateBatch:
    """What one optimiser step learns from.

    Attributes:
        states: [B, S + 1, L, D] stored trajectories.
        conditioning: B prompts.
        advantages: [B].
        old_log_probs: [B, S - 1] under the policy that made the rollouts.
        selected: [B, K] which chunks are trained.
    """

    states: Tensor
    conditioning: Conditioning
    advantages: Tensor
    old_log_probs: Tensor
    selected: Tensor


@dataclass(frozen=True)
class Objective:
    """Settings of the clipped objective.

    Attributes:
        plan: The chunks.
        clip_range: Half width of the ratio's trust region, above 0.
        kl_coef: Weight of the KL divergence to the reference policy, at least 0.
    """

    plan: ChunkPlan
    clip_range: float
    kl_coef: float = 0.0


@dataclass(frozen=True)
class UpdateStats:
    """Ratios and clipping over the selected chunks of one update; `kl` is the mean over the trained steps."""

    ratio_mean: float
    ratio_min: float
    ratio_max: float
    clip_fraction: float
    kl: float
    trained_steps: int


def accumulate_gradient(
    policy: PolicyVelocity,
    reference: PolicyVelocity | None,
    grid: StepGrid,
    batch: UpdateBatch,
    objective: Objective,
    *,
    on_policy: bool,
    micro_batch_size: int,
    backward: Callable[[Tensor], None],
) -> UpdateStats:
    """Add the gradient of minus the chunk objective to the policy's parameters.

    Paper: Eq. (13) and (14); the decomposition is in docs/equations.md.

    Args:
        policy: Velocity with gradients.
        reference: Velocity of the reference policy; needed when `objective.kl_coef` is positive.
        grid: The rollouts' sampling grid.
        batch: Trajectories, advantages and chunk selection.
        objective: Chunks, clip range and KL weight.
        on_policy: True on the first update after a rollout: ratios are 1 and are not computed.
        micro_batch_size: Items back-propagated at a time.
        backward: Called with each micro-batch's loss (accelerate's, for scaling and distribution).

    Raises:
        ValueError: A KL weight without a reference policy.
    """
    if objective.kl_coef > 0 and reference is None:
        raise ValueError(f"kl_coef {objective.kl_coef} needs a reference policy")
    items = _selected_items(batch, objective.plan)
    old = batch.old_log_probs
    new = old if on_policy else _current_log_probs(policy, grid, batch, items, micro_batch_size)
    coefficients = gradient_coefficients(
        new, old, batch.advantages, objective.clip_range, objective.plan, batch.selected
    )
    penalties = -kl_coefficients(old, objective.kl_coef, objective.plan, batch.selected)
    kl_sum = 0.0
    for rows, steps in _micro_batches(items, micro_batch_size):
        transition = _transition(policy, grid, batch, rows, steps)
        log_probs = gaussian_log_prob(batch.states[rows, steps + 1], transition.mean, transition.std)
        loss = -(coefficients[rows, steps] * log_probs).sum()
        if reference is not None and objective.kl_coef > 0:
            with torch.no_grad():
                anchor = _transition(reference, grid, batch, rows, steps)
            kl = gaussian_kl(transition.mean, anchor.mean, transition.std)
            loss = loss + (penalties[rows, steps] * kl).sum()
            kl_sum += float(kl.detach().sum())
        backward(loss)
    return _statistics(new, batch, objective, kl_sum / max(len(items), 1), len(items))


def _selected_items(batch: UpdateBatch, plan: ChunkPlan) -> Tensor:
    """[N, 2] pairs (sample, step) of the selected chunks."""
    chunk = torch.as_tensor(plan.chunk_of_step(), device=batch.selected.device)
    return batch.selected[:, chunk].nonzero()


def _micro_batches(items: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for part in items.split(size):
        yield part[:, 0], part[:, 1]


def _transition(
    policy: PolicyVelocity, grid: StepGrid, batch: UpdateBatch, rows: Tensor, steps: Tensor
) -> Transition:
    """The Gaussian of each item's step."""
    x, where = batch.states[rows, steps], steps.cpu()
    t, t_next = grid.times[where], grid.times[where + 1]
    velocity = policy(x, t.to(x), batch.conditioning.rows(rows))
    return sde_transition(x, velocity, t, t_next, grid.diffusion_coefs[where])


@torch.no_grad()
def _current_log_probs(
    policy: PolicyVelocity, grid: StepGrid, batch: UpdateBatch, items: Tensor, micro_batch_size: int
) -> Tensor:
    """[B, S - 1] under the current policy; steps that are not selected keep the old values."""
    log_probs = batch.old_log_probs.clone()
    for rows, steps in _micro_batches(items, micro_batch_size):
        transition = _transition(policy, grid, batch, rows, steps)
        log_probs[rows, steps] = gaussian_log_prob(
            batch.states[rows, steps + 1], transition.mean, transition.std
        )
    return log_probs


def _statistics(new: Tensor, batch: UpdateBatch, objective: Objective, kl: float, count: int) -> UpdateStats:
    ratios = chunk_ratio(new, batch.old_log_probs, objective.plan)
    chosen = ratios[batch.selected]
    passes = clip_mask(ratios, batch.advantages, objective.clip_range)[batch.selected]
    return UpdateStats(
        ratio_mean=float(chosen.mean()),
        ratio_min=float(chosen.min()),
        ratio_max=float(chosen.max()),
        clip_fraction=float(1 - passes.double().mean()),
        kl=kl,
        trained_steps=count,
    )
