"""The stochastic sampler: how much noise each step takes, and the Gaussian it draws from."""

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from chunk_grpo.core.flow import ode_step
from chunk_grpo.core.precision import at_least_float32, broadcast, exact
from chunk_grpo.core.types import PerSample, Transition

SdeKind: TypeAlias = Literal["flow", "dance"]


def diffusion_coefs(times: Tensor, kind: SdeKind, eta: float) -> Tensor:
    """The diffusion coefficient (the paper's sigma_t) of every step but the last, which takes no noise.

    Paper: Eq. (7), its sigma_t. "dance" (Dance-GRPO) is the constant eta; "flow" (Flow-GRPO) is
    eta * sqrt(t / (1 - t)), where the first step's t = 1 is replaced by the next grid value inside 1 - t,
    which keeps it finite.

    Args:
        times: Time grid, [S + 1], strictly falling from at most 1 to 0.
        kind: Which of the two.
        eta: Scale of the noise, at least 0; 0 is the ODE. Table 6 sets 0.7.

    Returns:
        float64 [S - 1], one for each step 0 .. S - 2.

    Raises:
        ValueError: A grid that does not fall strictly to 0, a negative eta, or an unknown kind.
    """
    require_time_grid(times)
    if not (eta >= 0 and math.isfinite(eta)):
        raise ValueError(f"eta must be a finite number, at least 0, got {eta}")
    t = times[:-2].to(torch.float64)
    if kind == "dance":
        return torch.full_like(t, eta)
    if kind == "flow":
        t_below_one = torch.where(t == 1, times[1].to(torch.float64), t)
        return eta * torch.sqrt(t / (1 - t_below_one))
    raise ValueError(f"kind must be 'flow' or 'dance', got {kind!r}")


def sde_transition(
    x: Tensor, velocity: Tensor, t: PerSample, t_next: PerSample, diffusion_coef: PerSample
) -> Transition:
    """The Gaussian of one Euler-Maruyama step of the reverse SDE, which keeps the ODE's marginals.

    Paper: Eq. (7), with dt = t_next - t < 0. Its correction sigma^2 / (2 t) * (x + (1 - t) v) is
    -sigma^2 / 2 times the score, since the score of a straight flow is -(x + (1 - t) v) / t.

    Args:
        x: State [B, L, D] at t.
        velocity: Predicted velocity at (x, t), the shape of x.
        t: Noise level now, in (0, 1], one for all or [B].
        t_next: Noise level after the step, in [0, t).
        diffusion_coef: The paper's sigma_t at this step, at least 0, one for all or [B].

    Returns:
        Mean and standard deviation of the next state, in float32 or wider; the std is 0 for coefficient 0.

    Raises:
        ValueError: The times do not fall, the coefficient is negative, or the shapes differ.
    """
    std = transition_std(t, t_next, diffusion_coef)
    ode_mean = ode_step(x, velocity, t, t_next)
    x, velocity = at_least_float32(x), at_least_float32(velocity)
    noise = x + broadcast(1 - exact(t), x) * velocity  # the noise x1 that this velocity implies
    pull = exact(std).square() / (2 * exact(t))  # sigma^2 * dt / (2 t)
    return Transition(mean=ode_mean - broadcast(pull, x) * noise, std=std.to(device=x.device, dtype=x.dtype))


def transition_std(t: PerSample, t_next: PerSample, diffusion_coef: PerSample) -> Tensor:
    """Standard deviation of one SDE step: diffusion_coef * sqrt(t - t_next).

    Paper: Eq. (7), its sigma_t dw_t over one step.

    Args:
        t: Noise level now, in (0, 1], one for all or [B].
        t_next: Noise level after the step, in [0, t).
        diffusion_coef: The paper's sigma_t at this step, at least 0.

    Returns:
        float64, shape () or [B], at least 0.

    Raises:
        ValueError: The times do not fall within [0, 1], or the coefficient is negative.
    """
    now, after, coef = exact(t), exact(t_next), exact(diffusion_coef)
    if not bool(((now <= 1) & (now > after) & (after >= 0)).all()):
        raise ValueError(f"a step must satisfy 1 >= t > t_next >= 0, got t={t}, t_next={t_next}")
    if not bool((coef >= 0).all()):
        raise ValueError(f"diffusion_coef must be at least 0, got {diffusion_coef}")
    return coef * torch.sqrt(now - after)


def require_time_grid(times: Tensor) -> None:
    """Check that a tensor is a time grid.

    Args:
        times: The tensor to check.

    Raises:
        ValueError: It is not one-dimensional with at least 3 entries, falling strictly from at most 1 to 0.
    """
    if times.ndim != 1 or times.shape[0] < 3:
        raise ValueError(f"times must have shape [S + 1] with S >= 2, got shape {tuple(times.shape)}")
    if not bool((times[1:] < times[:-1]).all()) or float(times[0]) > 1 or float(times[-1]) != 0:
        raise ValueError(f"times must fall strictly from at most 1 to 0, got {times.tolist()}")
