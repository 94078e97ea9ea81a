"""AWM's and DiffusionNFT's values against the formulas of their papers."""

import numpy as np
import pytest
import torch
from torch import Tensor

from chunk_grpo.core.flow import interpolate, time_grid
from chunk_grpo.core.forward_process import (
    LEAST_WEIGHT,
    matching_value,
    nft_value,
    optimality,
    stratified_times,
    velocity_divergence,
)

n, L, D = 4, 3, 5


def draw(seed: int) -> Tensor:
    return torch.randn(n, L, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


T = torch.tensor([0.1, 0.4, 0.8, 1.0], dtype=torch.float64)
R = torch.tensor([0.0, 0.3, 0.7, 1.0], dtype=torch.float64)
VELOCITY, OLD, X0, NOISE = (draw(seed) for seed in range(4))


def test_the_forward_process_leads_from_the_image_to_the_noise_along_the_target() -> None:
    assert torch.equal(interpolate(X0, NOISE, torch.zeros(n)), X0)
    assert torch.equal(interpolate(X0, NOISE, torch.ones(n)), NOISE)
    h = 1e-6
    slope = (interpolate(X0, NOISE, T) - interpolate(X0, NOISE, T - h)) / h
    assert torch.allclose(matching_value(slope, X0, NOISE), torch.zeros(n, dtype=torch.float64), atol=1e-12)


def test_matching_is_minus_the_mean_squared_error() -> None:
    expected = -((VELOCITY.numpy() - (NOISE.numpy() - X0.numpy())) ** 2).reshape(n, -1).mean(axis=1)
    np.testing.assert_allclose(matching_value(VELOCITY, X0, NOISE).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("beta", [0.1, 1.0, 2.0])
def test_nft_is_the_weighted_loss_of_both_implicit_policies(beta: float) -> None:
    x = interpolate(X0, NOISE, T)
    found = nft_value(VELOCITY, OLD, x, X0, T, R, beta)
    for i in range(n):
        v, old, at, image, t, r = (value[i].numpy() for value in (VELOCITY, OLD, x, X0, T, R))
        parts = []
        for mixed in ((1 - beta) * old + beta * v, (1 + beta) * old - beta * v):
            error = at - t * mixed - image
            parts.append((error**2).mean() / np.abs(error).mean())
        assert float(found[i]) == pytest.approx(-(r * parts[0] + (1 - r) * parts[1]) / beta, rel=1e-12)


def test_on_policy_nft_follows_good_images_and_leaves_bad_ones() -> None:
    """There the gradient is 2 t (2 r - 1) error / (w n): towards x_0 for r > 1/2, away from it for r < 1/2."""
    x, velocity = interpolate(X0, NOISE, T), OLD.clone().requires_grad_()
    (found,) = torch.autograd.grad(nft_value(velocity, OLD, x, X0, T, R, 0.3).sum(), velocity)
    error = x - T.view(-1, 1, 1) * OLD - X0
    weight = error.abs().mean(dim=(1, 2), keepdim=True)
    expected = 2 * (T * (2 * R - 1)).view(-1, 1, 1) * error / (weight * L * D)
    assert torch.allclose(found, expected, rtol=1e-10)


def test_a_perfect_prediction_does_not_divide_by_zero() -> None:
    x = interpolate(X0, NOISE, T)
    value = nft_value(NOISE - X0, NOISE - X0, x, X0, T, R, 1.0)
    assert torch.all(value.abs() < 1e-20 / LEAST_WEIGHT)


def test_optimality_is_a_half_for_the_average_image() -> None:
    found = optimality(torch.tensor([-9.0, -5.0, 0.0, 2.5, 5.0, 9.0]), 5.0)
    assert found.tolist() == [0.0, 0.0, 0.5, 0.75, 1.0, 1.0]


def test_the_divergence_is_the_mean_squared_difference() -> None:
    expected = ((VELOCITY - OLD).numpy() ** 2).reshape(n, -1).mean(axis=1)
    np.testing.assert_allclose(velocity_divergence(VELOCITY, OLD).numpy(), expected, rtol=1e-12)


def test_stratified_times_by_hand() -> None:
    """The grid 1, 0.6, 0.2, 0 of 3 steps in two parts, from 1 to 0.4 and from 0.4 to 0."""
    times = torch.tensor([1.0, 0.6, 0.2, 0.0], dtype=torch.float64)
    steps, shares = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0.0, 0.5, 0.9, 0.0, 0.5, 1.0])
    # Places 0, 0.75, 1.35, 1.5, 2.25, 3 on the grid.
    expected = [1.0, 1 - 0.75 * 0.4, 0.6 - 0.35 * 0.4, 0.4, 0.2 - 0.25 * 0.2, 0.0]
    assert stratified_times(times, steps, shares).tolist() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_stratified_times_have_the_mean_of_independent_ones_and_a_smaller_variance(shift: float) -> None:
    """Of t over N = 16 steps. With shift 1 the variances of the mean are 1 / (12 N^3) and 1 / (12 N)."""
    draws, steps = 4000, torch.arange(16)
    times, stream = time_grid(17, shift), torch.Generator().manual_seed(0)
    shares = torch.rand(draws * 16, generator=stream)
    found = stratified_times(times, steps.repeat(draws), shares).view(draws, 16)
    anywhere = torch.randint(16, (draws * 16,), generator=stream)
    independent = stratified_times(times, anywhere, shares).view(draws, 16)
    middle = ((times[:-1] + times[1:]) / 2).mean()  # of the grid's steps, which are equally likely
    for drawn in (found, independent):
        mean = drawn.mean(dim=1)
        assert abs(mean.mean() - middle) < 4 * mean.std() / draws**0.5
    if shift == 1:
        assert float(found.mean(dim=1).var()) == pytest.approx(1 / (12 * 16**3), rel=0.1)
        assert float(independent.mean(dim=1).var()) == pytest.approx(1 / (12 * 16), rel=0.1)
    assert found.mean(dim=1).var() < independent.mean(dim=1).var() / 100
