"""Values of steps of the forward process, which AWM and DiffusionNFT have in the place of log p of a sampled step.

The policy is evaluated at the final latents, noised again to the step's time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from chunk_grpo.core.flow import interpolate
from chunk_grpo.core.forward_process import matching_value, nft_value, velocity_divergence
from chunk_grpo.families.base import Conditioning, ConditioningRows
from chunk_grpo.training.method import StepGrid

PolicyVelocity = Callable[[Tensor, Tensor, Conditioning], Tensor]
"""(x [n, L, D], t [n], conditioning of n prompts) -> velocity [n, L, D]."""

NoiseOfItems = Callable[[Tensor, Tensor], Tensor]
"""(rows [n], steps [n]) -> standard normal noise [n, L, D] on the CPU, the same at every call."""


@dataclass(frozen=True)
class NoisedPrediction:
    """Velocity of a policy at states of the forward process."""

    velocity: Tensor
    """[n, L, D]."""
    x: Tensor
    """The states [n, L, D]."""
    x0: Tensor
    """Final latents [n, L, D]."""
    noise: Tensor
    """Noise of the states [n, L, D]."""
    t: Tensor
    """Their times [n]."""


class MatchingValues:
    """AWM: minus the matching loss of the final latents, noised to the step's time."""

    has_ratio = True
    drift: Tensor | None = None

    def __init__(
        self, grid: StepGrid, conditioning: ConditioningRows, finals: Tensor, noise: NoiseOfItems
    ) -> None:
        """Keep the images of B trajectories.

        Args:
            grid: Sampling grid, for the times of the steps.
            conditioning: Prompts of the trajectories.
            finals: Final latents [B, L, D].
            noise: Noise of items.
        """
        self._grid, self._conditioning, self._finals, self._noise_of = grid, conditioning, finals, noise

    def old(self, kept: Tensor) -> Tensor:
        """The sampling policy's values, which `sampled_log_prob` has found."""
        return kept

    def predict(self, policy: PolicyVelocity, rows: Tensor, steps: Tensor) -> NoisedPrediction:
        """Velocity at the noised states."""
        x0 = self._finals[rows]
        noise, t = self._noise_of(rows, steps).to(x0), self._grid.times[steps].to(x0)
        x = interpolate(x0, noise, t)
        velocity = policy(x, t, self._conditioning.rows(rows).to(x0.device))
        return NoisedPrediction(velocity, x, x0, noise, t)

    def log_prob(self, prediction: NoisedPrediction, rows: Tensor, steps: Tensor) -> Tensor:
        """Minus the mean squared error of the velocity."""
        return matching_value(prediction.velocity, prediction.x0, prediction.noise)

    def sampled_log_prob(self, prediction: NoisedPrediction, rows: Tensor, steps: Tensor) -> Tensor:
        """The value."""
        return self.log_prob(prediction, rows, steps)

    def kl(self, prediction: NoisedPrediction, reference: NoisedPrediction) -> Tensor:
        """Mean squared difference of the velocities."""
        return velocity_divergence(prediction.velocity, reference.velocity)


class NftValues(MatchingValues):
    """DiffusionNFT: minus its loss, which needs the sampling policy's velocities."""

    has_ratio = False

    def __init__(
        self,
        grid: StepGrid,
        conditioning: ConditioningRows,
        finals: Tensor,
        noise: NoiseOfItems,
        velocities: Tensor,
        first_step: Tensor,
        good: Tensor,
        beta: float,
    ) -> None:
        """Keep the images of B trajectories.

        Args:
            grid: Sampling grid, for the times of the steps.
            conditioning: Prompts of the trajectories.
            finals: Final latents [B, L, D].
            noise: Noise of items.
            velocities: Room for the sampling policy's velocities [B, Z, L, D], which `sampled_log_prob` fills.
            first_step: Step of each row's first velocity [B].
            good: DiffusionNFT's probability that an image is good [B].
            beta: Mixture of the two velocities.
        """
        super().__init__(grid, conditioning, finals, noise)
        self._velocities, self._first_step, self._good, self._beta = velocities, first_step, good, beta

    def log_prob(self, prediction: NoisedPrediction, rows: Tensor, steps: Tensor) -> Tensor:
        """Minus DiffusionNFT's loss."""
        p = prediction
        old = self._velocities[rows, steps - self._first_step[rows]].to(p.x)
        good = self._good[rows].to(p.x)
        return nft_value(p.velocity, old, p.x, p.x0, p.t, good, self._beta)

    def sampled_log_prob(self, prediction: NoisedPrediction, rows: Tensor, steps: Tensor) -> Tensor:
        """The value; keeps the velocities."""
        places = steps - self._first_step[rows]
        self._velocities[rows, places] = prediction.velocity.to(self._velocities)
        return self.log_prob(prediction, rows, steps)
