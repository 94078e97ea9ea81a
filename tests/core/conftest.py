from dataclasses import dataclass

import pytest
import torch
from torch import Tensor


@dataclass(frozen=True)
class GaussianFlow:
    """A flow to N(mean, std^2) in every dimension: velocity and marginals have closed forms."""

    mean: float
    std: float

    def marginal(self, t: float) -> tuple[float, float]:
        """Mean and variance of x_t = (1 - t) x0 + t x1."""
        return (1 - t) * self.mean, (1 - t) ** 2 * self.std**2 + t**2

    def velocity(self, x: Tensor, t: Tensor) -> Tensor:
        """E[x1 - x0 | x_t = x], by Gaussian conditioning."""
        t = t.reshape(-1, *[1] * (x.ndim - 1))
        variance = (1 - t) ** 2 * self.std**2 + t**2
        residual = x - (1 - t) * self.mean
        noise = t / variance * residual
        data = self.mean + (1 - t) * self.std**2 / variance * residual
        return noise - data


@pytest.fixture
def gaussian_flow() -> GaussianFlow:
    return GaussianFlow(mean=1.5, std=0.6)


@pytest.fixture
def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
