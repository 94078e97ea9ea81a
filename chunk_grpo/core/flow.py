"""Rectified flow: time grid, straight path, its velocity, the training loss and the ODE step."""

import math

import torch
from torch import Tensor

from chunk_grpo.core.precision import at_least_float32, broadcast, exact
from chunk_grpo.core.types import PerSample


def time_grid(num_steps: int, shift: float = 1.0) -> Tensor:
    """Noise levels of a sampling run, from noise to image.

    The uniform grid is warped by t -> shift * t / (1 + (shift - 1) * t), which spends more steps near noise
    when shift > 1. Source: Esser et al. 2024, Eq. (23); the paper's Table 6 sets shift 3.

    Args:
        num_steps: Number of sampling steps S, at least 2.
        shift: Time shift, positive; 1 leaves the grid uniform.

    Returns:
        float64 [S + 1], strictly falling from 1 to 0.

    Raises:
        ValueError: Too few steps, or a shift that is not a positive number.
    """
    if num_steps < 2:
        raise ValueError(f"num_steps must be at least 2 (the last step carries no noise), got {num_steps}")
    if not (shift > 0 and math.isfinite(shift)):
        raise ValueError(f"shift must be a positive number, got {shift}")
    t = torch.linspace(1.0, 0.0, num_steps + 1, dtype=torch.float64)
    return shift * t / (1 + (shift - 1) * t)


def interpolate(x0: Tensor, x1: Tensor, t: PerSample) -> Tensor:
    """The state at noise level t on the straight path from data to noise.

    Paper: Eq. (1).

    Args:
        x0: Data latents [B, ...].
        x1: Gaussian noise, the shape of x0.
        t: Noise level in [0, 1], one for all or [B].

    Returns:
        (1 - t) * x0 + t * x1, the shape of x0.

    Raises:
        ValueError: x0 and x1 differ in shape.
    """
    _require_same_shape("x0", x0, "x1", x1)
    return broadcast(1 - exact(t), x0) * x0 + broadcast(t, x0) * x1


def target_velocity(x0: Tensor, x1: Tensor) -> Tensor:
    """The velocity of the straight path, which the model learns to predict.

    Paper: Eq. (2), its v.

    Args:
        x0: Data latents [B, ...].
        x1: Gaussian noise, the shape of x0.

    Returns:
        x1 - x0: it points towards noise, so sampling walks against it.

    Raises:
        ValueError: x0 and x1 differ in shape.
    """
    _require_same_shape("x0", x0, "x1", x1)
    return x1 - x0


def flow_matching_loss(velocity: Tensor, x0: Tensor, x1: Tensor) -> Tensor:
    """Squared error of a predicted velocity, mean over samples and latent dimensions.

    Paper: Eq. (2); the mean over dimensions in place of the squared norm only rescales it
    (docs/deviations.md).

    Args:
        velocity: Predicted velocity [B, ...] at `interpolate(x0, x1, t)`.
        x0: Data latents, the shape of velocity.
        x1: Gaussian noise, the shape of velocity.

    Returns:
        The loss, a scalar in float32 or wider, at least 0.

    Raises:
        ValueError: The shapes differ.
    """
    target = target_velocity(at_least_float32(x0), at_least_float32(x1))
    _require_same_shape("velocity", velocity, "x0", x0)
    return (at_least_float32(velocity) - target).square().mean()


def ode_step(x: Tensor, velocity: Tensor, t: PerSample, t_next: PerSample) -> Tensor:
    """One Euler step of the probability-flow ODE, without noise.

    Paper: Eq. (3), with dt = t_next - t < 0 because sampling runs from noise to data.

    Args:
        x: State [B, ...] at t.
        velocity: Predicted velocity at (x, t), the shape of x.
        t: Noise level now, in (0, 1], one for all or [B].
        t_next: Noise level after the step, in [0, t).

    Returns:
        The state at t_next, in float32 or wider.

    Raises:
        ValueError: velocity has another shape than x.
    """
    _require_same_shape("velocity", velocity, "x", x)
    x = at_least_float32(x)
    return x + broadcast(exact(t_next) - exact(t), x) * at_least_float32(velocity)


def _require_same_shape(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    if value.shape != other.shape:
        raise ValueError(f"{name} must have the shape of {other_name} {tuple(other.shape)}, got {tuple(value.shape)}")
