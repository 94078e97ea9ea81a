"""Methods that learn from the forward process: final latents, noised again, instead of the states that were sampled.

The state at a step's time is `flow.interpolate` of the final latents x_0 and noise, the target `flow.target_velocity`.

AWM (advantage weighted matching, arXiv 2509.25050) puts minus the matching loss in the place of log p of a step.
DiffusionNFT (arXiv 2509.16117) has no ratio: it moves an implicit policy towards images with a good reward, and one in
the opposite direction towards the others.

Shape letters: n items, L tokens, D channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chunk_grpo.core.flow import target_velocity

LEAST_WEIGHT = 1e-5
"""Least error by which DiffusionNFT's loss is divided; the released code's."""


def stratified_times(times: Tensor, steps: Tensor, shares: Tensor) -> Tensor:
    """A time within the part of each step: T((s + u) S / N), T the grid, read linearly between its S + 1 levels.

    The N parts cover (0, 1], each with as many of the grid's steps. With u uniform in [0, 1), the mean of any
    function over all steps is an unbiased estimate of its mean over T(S w), w uniform; for shift 1, over uniform
    times. Its variance is at most that of N independent draws. Source: stratified sampling, as V-GRPO
    (arXiv 2604.23380) has it by its abstract.

    Args:
        times: Time grid [S + 1].
        steps: int64 [n], in 0 .. N - 1 = S - 2.
        shares: Place u within the step's part [n], in [0, 1).

    Returns:
        float64 [n], in (0, 1].
    """
    num_steps = len(times) - 1
    place = (steps + shares.to(torch.float64)) * (num_steps / (num_steps - 1))  # from 0 to S
    before = place.floor().to(torch.int64).clamp(max=num_steps - 1)
    return torch.lerp(times[before], times[before + 1], place - before)


def matching_value(velocity: Tensor, x0: Tensor, noise: Tensor) -> Tensor:
    """AWM: minus the mean squared error of the velocity, [n]; all times weigh the same.

    Args:
        velocity: Velocity of the policy at the noised states [n, L, D].
        x0: Final latents [n, L, D].
        noise: Noise of the states [n, L, D].
    """
    return -_mean_square(velocity - target_velocity(x0, noise))


def nft_value(
    velocity: Tensor, old_velocity: Tensor, x: Tensor, x0: Tensor, t: Tensor, optimality: Tensor, beta: float
) -> Tensor:
    """DiffusionNFT: minus the loss of each item, [n].

    With v+ = (1 - beta) v_old + beta v and v- = (1 + beta) v_old - beta v, and the final latents that each predicts:

        loss = (r |x - t v+ - x_0|^2 / w+  +  (1 - r) |x - t v- - x_0|^2 / w-) / beta

    w is the mean absolute error of the prediction, a constant. Squares are averaged over tokens and channels.

    Args:
        velocity: Velocity of the policy at the noised states [n, L, D].
        old_velocity: Velocity of the sampling policy there [n, L, D], a constant.
        x: Noised states [n, L, D].
        x0: Final latents [n, L, D].
        t: Times in [0, 1], [n].
        optimality: r in [0, 1], [n].
        beta: Mixture of the two velocities, above 0.
    """
    old = old_velocity.detach()
    positive = _weighted_error(x, (1 - beta) * old + beta * velocity, x0, t)
    negative = _weighted_error(x, (1 + beta) * old - beta * velocity, x0, t)
    return -(optimality * positive + (1 - optimality) * negative) / beta


def optimality(advantage: Tensor, advantage_clip: float) -> Tensor:
    """DiffusionNFT's probability that an image is good: 1/2 + A / (2 clip), within [0, 1].

    Args:
        advantage: Advantages of any shape.
        advantage_clip: Bound of the advantages, above 0.
    """
    return (0.5 + advantage / (2 * advantage_clip)).clamp(0, 1)


def velocity_divergence(velocity: Tensor, reference: Tensor) -> Tensor:
    """Mean squared difference of two velocities, [n]: the divergence from the reference policy in both methods.

    Args:
        velocity: Velocity of the policy [n, L, D].
        reference: Velocity of the reference policy [n, L, D].
    """
    return _mean_square(velocity - reference)


def _weighted_error(x: Tensor, velocity: Tensor, x0: Tensor, t: Tensor) -> Tensor:
    error = x - t.to(x).view(-1, 1, 1) * velocity - x0
    weight = error.detach().double().abs().mean(dim=(1, 2)).clamp(min=LEAST_WEIGHT)
    return _mean_square(error) / weight.to(error)


def _mean_square(values: Tensor) -> Tensor:
    return values.square().mean(dim=(1, 2))
