"""Values of steps of the forward process, which AWM and DiffusionNFT have in the place of log p of a sampled step.

The policy is evaluated at the final latents, noised again to the step's time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from chunk_grpo.core.flow import interpolate
from chunk_grpo.core.forward_process import matching_value, nft_value, stratified_times, velocity_divergence
from chunk_grpo.families.base import Conditioning, ConditioningRows
from chunk_grpo.seeding import generator
from chunk_grpo.training.chunk_selection import DrawContext
from chunk_grpo.training.method import Method

PolicyVelocity = Callable[[Tensor, Tensor, Conditioning], Tensor]
"""(x [n, L, D], t [n], conditioning of n prompts) -> velocity [n, L, D]."""

PairsOfItems = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(rows [n], steps [n]) -> times [n] and standard normal noise [n, L, D] on the CPU, the same at every call."""


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

    def __init__(self, conditioning: ConditioningRows, finals: Tensor, pairs: PairsOfItems) -> None:
        """Keep the images of B trajectories.

        Args:
            conditioning: Prompts of the trajectories.
            finals: Final latents [B, L, D].
            pairs: Time and noise of items.
        """
        self._conditioning, self._finals, self._pairs = conditioning, finals, pairs

    def old(self, kept: Tensor) -> Tensor:
        """The sampling policy's values, which `sampled_log_prob` has found."""
        return kept

    def predict(self, policy: PolicyVelocity, rows: Tensor, steps: Tensor) -> NoisedPrediction:
        """Velocity at the noised states."""
        x0 = self._finals[rows]
        t, noise = (each.to(x0) for each in self._pairs(rows, steps))
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
        conditioning: ConditioningRows,
        finals: Tensor,
        pairs: PairsOfItems,
        velocities: Tensor,
        first_step: Tensor,
        good: Tensor,
        beta: float,
    ) -> None:
        """Keep the images of B trajectories.

        Args:
            conditioning: Prompts of the trajectories.
            finals: Final latents [B, L, D].
            pairs: Time and noise of items.
            velocities: Room for the sampling policy's velocities [B, Z, L, D], which `sampled_log_prob` fills.
            first_step: Step of each row's first velocity [B].
            good: DiffusionNFT's probability that an image is good [B].
            beta: Mixture of the two velocities.
        """
        super().__init__(conditioning, finals, pairs)
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


def drawn_pairs(context: DrawContext, method: Method, shape: torch.Size, alike: int) -> PairsOfItems:
    """Times, and noise [n, *shape], of the forward process: streams for each `alike` rows and step.

    They do not depend on the process that has the rows.

    Args:
        context: Index of the update and its rows; it names the random streams.
        method: Settings of the variant.
        shape: Shape of an image's latents.
        alike: Number of consecutive rows of the update that share them.
    """

    def pairs(rows: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        named = [
            (context.seed, context.iteration, context.update, context.rows[row] // alike * alike, step)
            for row, step in zip(rows.tolist(), steps.tolist(), strict=True)
        ]
        noise = torch.stack([torch.randn(shape, generator=generator("forward", *item)) for item in named])
        times = method.grid.times
        if method.variant.forward_times == "grid":
            return times[steps], noise
        shares = [torch.rand((), generator=generator("forward-time", *item)) for item in named]
        return stratified_times(times, steps, torch.stack(shares)), noise

    return pairs
