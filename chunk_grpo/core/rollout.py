"""Sampling: stochastic rollouts for training, deterministic ones for generation."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from chunk_grpo.core.choices import Solver
from chunk_grpo.core.flow import ode_step
from chunk_grpo.core.log_prob import gaussian_log_prob
from chunk_grpo.core.precision import at_least_float32
from chunk_grpo.core.sde import SDE, Sampler, require_coefficients, require_noisy_steps, require_time_grid
from chunk_grpo.core.solvers import ODE_STEPS, OdeStep
from chunk_grpo.core.types import Trajectory, Velocity

Generators: TypeAlias = torch.Generator | Sequence[torch.Generator]
"""One generator for the batch, or one per sample. With one per sample, its noise does not depend on the batch."""

OnStep: TypeAlias = Callable[[int], None]
"""Called with the step's number after each step, for a progress bar."""


def sample_noise(shape: Sequence[int], generators: Generators) -> Tensor:
    """Standard normal noise from explicit generators.

    Args:
        shape: Shape [B, ...] of the noise.
        generators: One generator for the batch, or a sequence of B, one for each sample.

    Returns:
        float32 noise [B, ...] on the generators' device: a seed gives the same noise for any precision of the model.

    Raises:
        ValueError: The number of generators is not B.
    """
    if isinstance(generators, torch.Generator):
        return torch.randn(*shape, generator=generators, device=generators.device)
    if len(generators) != shape[0]:
        raise ValueError(f"expected one generator per sample ({shape[0]}), got {len(generators)}")
    return torch.stack([torch.randn(*shape[1:], generator=each, device=each.device) for each in generators])


@torch.no_grad()
def rollout_sde(
    velocity: Velocity,
    x1: Tensor,
    times: Tensor,
    diffusion_coefs: Tensor,
    generators: Generators,
    on_step: OnStep | None = None,
    sde_steps: Sequence[int] | None = None,
    sampler: Sampler = SDE,
    keep_means: bool = False,
    predict_at: Sequence[int] | None = None,
    solver: Solver = "euler",
) -> Trajectory:
    """Sample trajectories with noise in every step but the last, or in chosen steps.

    Paper: Eq. (11), each step by Eq. (7); the last step is the ODE's, has no density and is not trained.

    MixGRPO (arXiv 2507.21802) and Flow-GRPO-Fast choose the steps of a window, see `window.py`; the others are ODE
    steps. Noise is drawn for them too and discarded, so that a step's noise does not depend on which other steps
    are noisy.

    Args:
        velocity: The policy with its prompts bound.
        x1: Initial noise [B, L, D].
        times: Time grid [S + 1] of `time_grid`.
        diffusion_coefs: The paper's sigma_t of steps 0 .. S - 2, [S - 1], at least 0; for another sampler
            its noise strengths. A step of strength 0 is an ODE step.
        generators: Source of the steps' noise: one for the batch or one per sample.
        on_step: Called after each step.
        sde_steps: Noisy steps, in 0 .. S - 2, in any order; None: all.
        sampler: Sampler of the noisy steps.
        keep_means: Whether to keep the mean of each noisy step too, which takes as much memory as the states.
        predict_at: Steps in 0 .. S - 2, in any order, at whose beginning the predicted data x - t v is kept; it takes
            no further evaluation. None: no step.
        solver: Rule of the ODE steps.

    Returns:
        The trajectories, without gradients.

    Raises:
        ValueError: Grid, number of coefficients, a coefficient or the choice of steps is invalid.
    """
    require_time_grid(times)
    num_sde_steps = len(times) - 2
    require_coefficients(diffusion_coefs, num_sde_steps)
    noisy = range(num_sde_steps) if sde_steps is None else sde_steps
    require_noisy_steps("sde_steps", noisy, num_sde_steps)
    if predict_at is not None:
        require_noisy_steps("predict_at", predict_at, num_sde_steps)
    states, means, log_probs, stds, predicted = [at_least_float32(x1)], [], [], [], []
    advance = ODE_STEPS[solver]()
    for step in range(num_sde_steps):
        x = states[-1]
        t, t_next = float(times[step]), float(times[step + 1])
        velocity_now = velocity(x, _batch_time(t, x))
        if predict_at is not None and step in predict_at:
            predicted.append(ode_step(x, velocity_now, t, 0.0))
        noise = sample_noise(x.shape, generators).to(x)
        coef = float(diffusion_coefs[step])
        if step in noisy and coef != 0:
            transition = sampler.transition(x, velocity_now, t, t_next, coef)
            mean = transition.mean
            states.append(mean + transition.std * noise)
            log_probs.append(gaussian_log_prob(states[-1], mean, transition.std))
            stds.append(sampler.std(t, t_next, coef))
        else:
            mean = advance(x, velocity_now, t, t_next)
            states.append(mean)
            log_probs.append(x.new_zeros(x.shape[0]))
            stds.append(torch.zeros((), dtype=torch.float64))
        if keep_means:
            means.append(mean)
        _report(on_step, step)
    states.append(_ode_move(velocity, states[-1], times, num_sde_steps, advance))
    _report(on_step, num_sde_steps)
    return Trajectory(
        times=times.to(torch.float64),
        states=torch.stack(states, dim=1),
        transition_stds=torch.stack(stds),
        log_probs=torch.stack(log_probs, dim=1),
        means=torch.stack(means, dim=1) if keep_means else None,
        predicted=torch.stack(predicted, dim=1) if predicted else None,
    )


@torch.no_grad()
def rollout_ode(
    velocity_for_step: Callable[[int], Velocity],
    x1: Tensor,
    times: Tensor,
    on_step: OnStep | None = None,
    first_step: int = 0,
) -> Tensor:
    """Sample without noise, with a model chosen per step.

    Paper: Eq. (3); App. B.3 (hybrid inference) when `velocity_for_step` changes the model, see `uses_base`.

    Args:
        velocity_for_step: Step number 0 .. S - 1 -> velocity of the model that takes the step.
        x1: Initial noise [B, L, D], or the state at `times[first_step]`.
        times: Time grid [S + 1] of `time_grid`.
        on_step: Called after each step.
        first_step: First step, from 0 to S, to continue from a state of another run.

    Returns:
        States [B, S + 1 - first_step, L, D], without gradients; the last one is the sample.

    Raises:
        ValueError: `times` is not a time grid.
    """
    require_time_grid(times)
    states, advance = [at_least_float32(x1)], ODE_STEPS["euler"]()
    for step in range(first_step, len(times) - 1):
        states.append(_ode_move(velocity_for_step(step), states[-1], times, step, advance))
        _report(on_step, step)
    return torch.stack(states, dim=1)


def _ode_move(velocity: Velocity, x: Tensor, times: Tensor, step: int, advance: OdeStep) -> Tensor:
    t, t_next = float(times[step]), float(times[step + 1])
    return advance(x, velocity(x, _batch_time(t, x)), t, t_next)


def _batch_time(t: float, x: Tensor) -> Tensor:
    return torch.full((x.shape[0],), t, dtype=x.dtype, device=x.device)


def _report(on_step: OnStep | None, step: int) -> None:
    if on_step is not None:
        on_step(step)
