"""TempFlow-GRPO's trajectory branching: one noisy step in an ODE run, so that the reward depends on that step alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from chunk_grpo.core.log_prob import gaussian_log_prob
from chunk_grpo.core.rollout import rollout_ode, sample_noise
from chunk_grpo.core.sde import SDE, Sampler, require_coefficients, require_noisy_steps, require_time_grid
from chunk_grpo.core.types import Transition, Velocity

RowVelocity: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x [n, L, D], t [n], rows int64 [n]) -> velocity [n, L, D]; `rows` holds each state's prompt index, 0 .. B - 1."""

BranchGenerators: TypeAlias = Callable[[int, int, int], torch.Generator]
"""(row, branch step, child) -> a generator at the start of that child's own stream."""


@dataclass(frozen=True)
class Branch:
    """The children of one noisy step: W for each of B trajectories."""

    step: int
    """Noisy step k, in 0 .. S - 2."""
    before: Tensor
    """States before the step [B, L, D], a view of the ODE run."""
    mean: Tensor
    """Mean of the step's Gaussian [B, L, D], shared by all children."""
    after: Tensor
    """States after the step [B, W, L, D], one per child."""
    log_probs: Tensor
    """Log-density of the draws, mean over latent dimensions, [B, W]."""
    finals: Tensor
    """Final latents of the children after the remaining ODE steps, [B, W, L, D]."""


@torch.no_grad()
def rollout_branches(
    velocity: RowVelocity,
    x1: Tensor,
    times: Tensor,
    diffusion_coefs: Tensor,
    branch_steps: Sequence[int],
    children: int,
    generators: BranchGenerators,
    sampler: Sampler = SDE,
) -> list[Branch]:
    """Run the ODE once, then at each branch step draw children and take each to its image by ODE steps.

    TempFlow-GRPO (arXiv 2508.04324): Definition 1, ODE(SDE(x_k)). The ODE run is shared by all branches, and
    a noisy step takes its velocity from it, so B * S + sum over k of B * children * (S - 1 - k) states are
    evaluated.

    Args:
        velocity: The policy; `rows` holds each state's prompt index.
        x1: Initial noise [B, L, D].
        times: Time grid [S + 1] of `time_grid`.
        diffusion_coefs: Diffusion coefficients of steps 0 .. S - 2, [S - 1], positive at the branch steps; for
            another sampler its noise strengths.
        branch_steps: Distinct steps k at which to branch, in 0 .. S - 2.
        children: Draws W for each trajectory and branch step, at least 1.
        generators: Source of each child's noise.
        sampler: Sampler of the noisy step.

    Returns:
        One branch for each branch step, in the given order, without gradients.

    Raises:
        ValueError: Grid, coefficients, branch steps or number of children are invalid.
    """
    require_time_grid(times)
    require_coefficients(diffusion_coefs, len(times) - 2)
    require_noisy_steps("branch_steps", branch_steps, len(times) - 2)
    if children < 1:
        raise ValueError(f"children must be at least 1, got {children}")
    prefix, velocities = _prefix(velocity, x1, times, branch_steps)
    rows = torch.arange(len(x1), device=x1.device).repeat_interleave(children)  # [B * W]
    branches = []
    for step in branch_steps:
        before = prefix[:, step]  # [B, L, D]
        t, t_next, coef = float(times[step]), float(times[step + 1]), float(diffusion_coefs[step])
        transition = sampler.transition(before, velocities[step], t, t_next, coef)
        after, log_probs = _children(transition, step, children, generators)  # [B, W, L, D], [B, W]
        starts = after.flatten(0, 1)  # [B * W, L, D]
        run = rollout_ode(_bound(velocity, rows), starts, times, first_step=step + 1)  # [B * W, S - step, L, D]
        branches.append(
            Branch(
                step=step,
                before=before,
                mean=transition.mean,
                after=after,
                log_probs=log_probs,
                finals=run[:, -1].unflatten(0, (-1, children)).clone(),  # a view would keep the whole run
            )
        )
    return branches


def _prefix(
    velocity: RowVelocity, x1: Tensor, times: Tensor, branch_steps: Sequence[int]
) -> tuple[Tensor, dict[int, Tensor]]:
    """States of the ODE run, and its velocities [B, L, D] at the branch steps."""
    rows = torch.arange(len(x1), device=x1.device)
    kept: dict[int, Tensor] = {}

    def recording(step: int) -> Velocity:
        def velocity_of_step(x: Tensor, t: Tensor) -> Tensor:
            found = velocity(x, t, rows)
            if step in branch_steps:
                kept[step] = found
            return found

        return velocity_of_step

    return rollout_ode(recording, x1, times), kept


def _children(transition: Transition, step: int, children: int, generators: BranchGenerators) -> tuple[Tensor, Tensor]:
    """Draws [B, W, L, D] from a transition and their log-densities [B, W]."""
    means = transition.mean.repeat_interleave(children, dim=0)  # [B * W, L, D]
    streams = [generators(row, step, child) for row in range(len(transition.mean)) for child in range(children)]
    drawn = means + transition.std * sample_noise(means.shape, streams).to(means)
    log_probs = gaussian_log_prob(drawn, means, transition.std)
    return drawn.unflatten(0, (-1, children)), log_probs.unflatten(0, (-1, children))


def _bound(velocity: RowVelocity, rows: Tensor) -> Callable[[int], Velocity]:
    return lambda step: lambda x, t: velocity(x, t, rows)
