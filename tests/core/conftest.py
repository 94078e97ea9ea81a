import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from chunk_grpo.core.assignment import TrainedChunks
from chunk_grpo.core.objective import Terms


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


def double(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def terms_of(old_log_probs, advantage, assignment, selected=None, drift=None, **weights):
    """Terms of the objective; all chunks are trained unless some are selected."""
    chosen = assignment.exists if selected is None else selected
    return Terms(old_log_probs, advantage, TrainedChunks(assignment, chosen, **weights), drift)


class LinearPolicy:
    """Log-probabilities and divergences [B, 16] of four parameters, some steps of it off the old policy."""

    def __init__(self, batch: int) -> None:
        self.features, self.theta = draw(batch, 16, 4), draw(4, seed=2).requires_grad_()
        self.old_log_probs = (self.features @ self.theta).detach() + 0.2 * draw(batch, 16, seed=1)

    def log_probs_and_kl(self) -> tuple[Tensor, Tensor]:
        return self.features @ self.theta, (self.features @ (self.theta - 0.5)).square()

    def gradient_item_by_item(self, coefs: Tensor, kl_coefs: Tensor) -> Tensor:
        """Sum of the update: gradients of single (sample, step) pairs with constant coefficients."""
        total = torch.zeros_like(self.theta)
        for row, step in ((coefs != 0) | (kl_coefs != 0)).nonzero().tolist():
            new, kl = self.log_probs_and_kl()
            item = coefs[row, step] * new[row, step] + kl_coefs[row, step] * kl[row, step]
            total += torch.autograd.grad(item, self.theta)[0]
        return total


def objective_in_loops(new, old, advantage, clip_range, chunks, kl, kl_coef):
    """The objective read off the formula: `chunks` holds each row's trained chunks, lists of steps."""
    log_ratio, kl, total = (new - old).tolist(), kl.tolist(), 0.0
    for row, trained in enumerate(chunks):
        for steps in trained:
            ratio = math.prod(math.exp(log_ratio[row][step]) for step in steps) ** (1 / len(steps))
            a, divergence = float(advantage[row]), math.fsum(kl[row][step] for step in steps) / len(steps)
            clipped = min(max(ratio, 1 - clip_range), 1 + clip_range)
            total += (min(ratio * a, clipped * a) - kl_coef * divergence) / (len(chunks) * len(trained))
    return total


@pytest.fixture
def gaussian_flow() -> GaussianFlow:
    return GaussianFlow(mean=1.5, std=0.6)


@pytest.fixture
def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
