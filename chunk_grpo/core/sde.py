"""Stochastic samplers: noise strength of each step, and the Gaussian of the next state."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from chunk_grpo.core.choices import SDES, Sde, implemented
from chunk_grpo.core.flow import ode_step
from chunk_grpo.core.precision import at_least_float32, broadcast, exact
from chunk_grpo.core.types import PerSample, Transition


def diffusion_coefs(times: Tensor, kind: Sde, eta: float) -> Tensor:
    """Diffusion coefficient (the paper's sigma_t) of every step but the last, which takes no noise.

    Paper: Eq. (7), its sigma_t. "dance" (Dance-GRPO) is the constant eta; "flow" (Flow-GRPO) is
    eta * sqrt(t / (1 - t)), where the first step's t = 1 is replaced by the next grid value inside 1 - t,
    which keeps it finite.

    Args:
        times: Time grid, [S + 1], strictly falling from at most 1 to 0.
        kind: "dance" or "flow".
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
    pull = exact(std).square() / (2 * exact(t))  # sigma^2 * dt / (2 t)
    return _pulled(ode_mean, pull, _implied_noise(x, velocity, t), std)


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
    _require_falling(t, t_next)
    coef = exact(diffusion_coef)
    if not bool((coef >= 0).all()):
        raise ValueError(f"diffusion_coef must be at least 0, got {diffusion_coef}")
    return coef * torch.sqrt(exact(t) - exact(t_next))


def cps_transition(x: Tensor, velocity: Tensor, t: PerSample, t_next: PerSample, eta: PerSample) -> Transition:
    """The Gaussian of one step of coefficients-preserving sampling (CPS).

    The step re-mixes the predicted data and noise so that the data's coefficient is 1 - t_next and the old
    and the new noise together have exactly the level t_next: with x0_hat = x - t v and
    x1_hat = x + (1 - t) v,

        mean = (1 - t_next) * x0_hat + sqrt(t_next^2 - std^2) * x1_hat,  std = t_next * sin(eta * pi / 2).

    At eta = 0 this is the ODE step, so the mean is computed as the ODE step minus a multiple of x1_hat.
    Source: Wang and Yu 2025 (arXiv 2509.05952).

    The path's variance is kept for the true x0 and x1. A model predicts their means, which vary less, and the
    std does not shrink with the step: samples lose variance on any grid, however fine (for data of variance
    .36 and eta .7 it tends to .26, see the tests), while samples of the SDE approach the data.

    Args:
        x: State [B, L, D] at t.
        velocity: Predicted velocity at (x, t), the shape of x.
        t: Noise level now, in (0, 1], one for all or [B].
        t_next: Noise level after the step, in [0, t).
        eta: Share of the noise that is new, in [0, 1], one for all or [B]: 0 none of it, 1 all of it.

    Returns:
        Mean and standard deviation of the next state, in float32 or wider; the std is 0 for eta 0 and at
        t_next 0.

    Raises:
        ValueError: The times do not fall, eta lies outside [0, 1], or the shapes differ.
    """
    std = cps_std(t, t_next, eta)
    ode_mean = ode_step(x, velocity, t, t_next)
    kept = exact(t_next) * torch.cos(exact(eta) * math.pi / 2)  # sqrt(t_next^2 - std^2)
    return _pulled(ode_mean, exact(t_next) - kept, _implied_noise(x, velocity, t), std)


def cps_std(t: PerSample, t_next: PerSample, eta: PerSample) -> Tensor:
    """Standard deviation of one CPS step: t_next * sin(eta * pi / 2).

    Source: Wang and Yu 2025 (arXiv 2509.05952).

    Args:
        t: Noise level now, in (0, 1], one for all or [B].
        t_next: Noise level after the step, in [0, t).
        eta: Share of the noise that is new, in [0, 1].

    Returns:
        float64, shape () or [B], from 0 to t_next.

    Raises:
        ValueError: The times do not fall within [0, 1], or eta lies outside [0, 1].
    """
    _require_falling(t, t_next)
    share = exact(eta)
    if not bool(((share >= 0) & (share <= 1)).all()):
        raise ValueError(f"eta of a CPS step must be from 0 to 1, got {eta}")
    return exact(t_next) * torch.sin(share * math.pi / 2)


@dataclass(frozen=True)
class Sampler:
    """Rule of a noisy step: two functions of the same times and noise strength.

    The strength is the diffusion coefficient for `SDE` and eta for `CPS`, one number for each noisy step.
    """

    transition: Callable[[Tensor, Tensor, PerSample, PerSample, PerSample], Transition]
    """(x [B, L, D], velocity, t, t_next, strength) -> the Gaussian of the next state."""
    std: Callable[[PerSample, PerSample, PerSample], Tensor]
    """(t, t_next, strength) -> standard deviation of that Gaussian in float64."""


SDE = Sampler(sde_transition, transition_std)
"""Euler-Maruyama steps of the reverse SDE; the strength of a step is its diffusion coefficient."""

CPS = Sampler(cps_transition, cps_std)
"""Coefficients-preserving steps; the strength of a step is eta, in [0, 1]."""


StepNoise: TypeAlias = tuple[Tensor, Sampler]
"""Noise strength of each noisy step, float64 [S - 1], and its sampler."""

_STEP_NOISE: Mapping[Sde, Callable[[Tensor, float], StepNoise]] = implemented(
    SDES,
    "core/sde.py",
    {
        "flow": lambda times, eta: (diffusion_coefs(times, "flow", eta), SDE),
        "dance": lambda times, eta: (diffusion_coefs(times, "dance", eta), SDE),
        "cps": lambda times, eta: (torch.full((len(times) - 2,), eta, dtype=torch.float64), CPS),
        "ode": lambda times, eta: (torch.zeros(len(times) - 2, dtype=torch.float64), SDE),
    },
)


def step_noise(kind: Sde, times: Tensor, eta: float) -> StepNoise:
    """Noise strengths of a rollout's steps.

    Args:
        kind: Name in `choices.SDES`.
        times: Time grid, [S + 1], strictly falling from at most 1 to 0.
        eta: Scale of the noise, at least 0, and for "cps" at most 1; "ode" has none.

    Returns:
        Strengths [S - 1] and their sampler.

    Raises:
        ValueError: A grid that does not fall strictly to 0, or an eta out of range.
    """
    return _STEP_NOISE[kind](times, eta)


def require_time_grid(times: Tensor) -> None:
    """Check that a tensor is a time grid.

    Args:
        times: Tensor to check.

    Raises:
        ValueError: It is not one-dimensional with at least 3 entries, falling strictly from at most 1 to 0.
    """
    if times.ndim != 1 or times.shape[0] < 3:
        raise ValueError(f"times must have shape [S + 1] with S >= 2, got shape {tuple(times.shape)}")
    if not bool((times[1:] < times[:-1]).all()) or float(times[0]) > 1 or float(times[-1]) != 0:
        raise ValueError(f"times must fall strictly from at most 1 to 0, got {times.tolist()}")


def require_noisy_steps(name: str, steps: Sequence[int], num_sde_steps: int) -> None:
    """Check that a list of steps holds distinct noisy steps.

    Args:
        name: Name of the list, for the message.
        steps: Steps to check.
        num_sde_steps: Number of steps that can take noise, N = S - 1.

    Raises:
        ValueError: The list is empty, or a step is named twice or lies outside 0 .. N - 1.
    """
    if not steps:
        raise ValueError(f"{name} must name at least one step, got none")
    if len(set(steps)) != len(steps):
        raise ValueError(f"{name} must name each step once, got {list(steps)}")
    if min(steps) < 0 or max(steps) >= num_sde_steps:
        raise ValueError(
            f"{name} must lie within 0 .. {num_sde_steps - 1} (the last step takes no noise), got {list(steps)}"
        )


def require_coefficients(diffusion_coefs: Tensor, num_sde_steps: int) -> None:
    """Check that there is one noise strength per noisy step.

    Args:
        diffusion_coefs: Tensor to check.
        num_sde_steps: Number of steps that can take noise, N = S - 1.

    Raises:
        ValueError: The shape is not [N].
    """
    if diffusion_coefs.shape != (num_sde_steps,):
        raise ValueError(
            f"diffusion_coefs must hold one value for each of the {num_sde_steps} noisy steps, "
            f"got shape {tuple(diffusion_coefs.shape)}"
        )


def _require_falling(t: PerSample, t_next: PerSample) -> None:
    now, after = exact(t), exact(t_next)
    if not bool(((now <= 1) & (now > after) & (after >= 0)).all()):
        raise ValueError(f"a step must satisfy 1 >= t > t_next >= 0, got t={t}, t_next={t_next}")


def _implied_noise(x: Tensor, velocity: Tensor, t: PerSample) -> Tensor:
    """Noise x1 implied by the velocity: x + (1 - t) v."""
    x = at_least_float32(x)
    return x + broadcast(1 - exact(t), x) * at_least_float32(velocity)


def _pulled(ode_mean: Tensor, pull: Tensor, noise: Tensor, std: Tensor) -> Transition:
    """Transition whose mean is the ODE step minus `pull` times the predicted noise."""
    mean = ode_mean - broadcast(pull, ode_mean) * noise
    return Transition(mean=mean, std=std.to(mean.dtype))
