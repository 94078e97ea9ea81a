"""Values that an update uses as log p of a step: of the sampled transitions, or of the forward process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from chunk_grpo.core.assignment import TrainedChunks
from chunk_grpo.core.choices import LIKELIHOODS, Likelihood, implemented, needs_old_means
from chunk_grpo.core.flow import interpolate
from chunk_grpo.core.forward_process import (
    matching_value,
    nft_value,
    optimality,
    velocity_divergence,
)
from chunk_grpo.core.log_prob import gaussian_kl, gaussian_log_prob
from chunk_grpo.core.ratios import NORMALISED
from chunk_grpo.core.types import Transition
from chunk_grpo.families.base import Conditioning, ConditioningRows
from chunk_grpo.training.method import Method

PolicyVelocity = Callable[[Tensor, Tensor, Conditioning], Tensor]
"""(x [n, L, D], t [n], conditioning of n prompts) -> velocity [n, L, D]."""

NoiseOfItems = Callable[[Tensor, Tensor], Tensor]
"""(rows [n], steps [n]) -> standard normal noise [n, L, D] on the CPU, the same at every call."""


@dataclass(frozen=True)
class UpdateBatch:
    """Training data of one update: latents and prompts on the policy's device, everything else on the CPU."""

    states: Tensor
    """States of whole trajectories or parts of them [B, Z + 1, L, D]."""
    first_step: Tensor
    """int64 [B], the step that begins at `states[:, 0]`."""
    conditioning: ConditioningRows
    """Prompts of the B trajectories; a micro-batch's are read and sent to the device for its passes."""
    advantages: Tensor
    """Advantages [B], or [B, Kmax] with a reward per chunk."""
    old_log_probs: Tensor
    """Log-probabilities [B, S - 1] under the sampling policy."""
    old_means: Tensor | None
    """Means of the noisy steps [B, Z or Z - 1, L, D], or the sampling policy's velocities at the states of the
    forward process; None if the method needs neither."""
    chunks: TrainedChunks
    """Trained chunks and their weights."""
    finals: Tensor | None = None
    """Final latents [B, L, D]; None without a forward process."""
    noise: NoiseOfItems | None = None
    """Noise of items of the forward process; None without one."""


class StepValues(Protocol):
    """Values of (sample, step) items. Rows [n] and steps [n] name the items."""

    has_ratio: bool
    """Whether the objective has the ratio exp(value - old value); else the value itself is maximised."""
    drift: Tensor | None
    """Divergence from the sampling policy [B, S - 1], at the items whose value was computed; None: not needed."""

    def old(self, kept: Tensor) -> Tensor:
        """Values [B, S - 1] under the sampling policy, from the `old_log_probs` [B, S - 1] that are kept."""

    def predict(self, policy: PolicyVelocity, rows: Tensor, steps: Tensor) -> Any:
        """Prediction of a policy for each item."""

    def value(self, prediction: Any, rows: Tensor, steps: Tensor) -> Tensor:
        """Value [n] of each item."""

    def evaluate_old(self, prediction: Any, rows: Tensor, steps: Tensor) -> Tensor:
        """`old_log_probs` [n] of each item, from the sampling policy's prediction."""

    def divergence(self, prediction: Any, reference: Any) -> Tensor:
        """Divergence [n] of a prediction from that of the reference policy for the same items."""


def step_values(method: Method, batch: UpdateBatch) -> StepValues:
    """Values by `likelihood` of the variant.

    Raises:
        ValueError: The batch lacks what the method needs.
    """
    return _KINDS[method.variant.likelihood](method, batch)


class TransitionValues:
    """Log-probabilities of the sampled transitions, Eq. (6), or their normalised log-ratios."""

    has_ratio = True

    def __init__(self, method: Method, batch: UpdateBatch) -> None:
        """Check that the batch has the old means, if the method needs them.

        Raises:
            ValueError: It has none.
        """
        variant = method.variant
        self._normalised = NORMALISED[variant.ratio_norm]
        if needs_old_means(variant.ratio_norm, variant.trust_region) and batch.old_means is None:
            raise ValueError(
                f"ratio_norm {variant.ratio_norm} with trust_region {variant.trust_region} needs the means of the "
                "old policy: roll out with keep_means"
            )
        self._grid, self._batch, self._kept = method.grid, batch, batch.old_log_probs
        self.drift = torch.zeros_like(self._kept) if variant.trust_region == "divergence" else None

    def old(self, kept: Tensor) -> Tensor:
        """The log-probabilities; 0 if the value is a log-ratio."""
        self._kept = kept
        return kept if self._normalised is None else torch.zeros_like(kept)

    def predict(self, policy: PolicyVelocity, rows: Tensor, steps: Tensor) -> Transition:
        """Gaussian of each item's step: mean [n, L, D]."""
        batch, grid = self._batch, self._grid
        x = batch.states[rows, steps - batch.first_step[rows]]  # [n, L, D]
        t, t_next = grid.times[steps], grid.times[steps + 1]
        velocity = policy(x, t.to(x), batch.conditioning.rows(rows).to(x.device))
        return grid.sampler.transition(x, velocity, t, t_next, grid.noise[steps])

    def value(self, prediction: Transition, rows: Tensor, steps: Tensor) -> Tensor:
        """Log-probability, or the normalised log-ratio, which is 0 under the old policy.

        Keeps each item's divergence from the old policy if it bounds the update.
        """
        batch, log_probs = self._batch, self.evaluate_old(prediction, rows, steps)
        if batch.old_means is None:
            return log_probs
        old_mean = batch.old_means[rows, steps - batch.first_step[rows]]  # [n, L, D]
        drift = gaussian_kl(prediction.mean, old_mean, prediction.std)  # [n]
        if self.drift is not None:
            self.drift[rows, steps] = drift.detach().cpu().to(self.drift)
        if self._normalised is None:
            return log_probs
        columns = (log_probs, self._kept[rows, steps], drift, prediction.std.expand(len(rows)))
        return self._normalised(*(column.to(log_probs).unsqueeze(1) for column in columns)).squeeze(1)

    def evaluate_old(self, prediction: Transition, rows: Tensor, steps: Tensor) -> Tensor:
        """Log-probability of the sampled step."""
        after = self._batch.states[rows, steps - self._batch.first_step[rows] + 1]  # [n, L, D]
        return gaussian_log_prob(after, prediction.mean, prediction.std)

    def divergence(self, prediction: Transition, reference: Transition) -> Tensor:
        """KL divergence of two Gaussians with the same standard deviation."""
        return gaussian_kl(prediction.mean, reference.mean, prediction.std)


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

    def __init__(self, method: Method, batch: UpdateBatch) -> None:
        """Check that the batch has final latents and noise.

        Raises:
            ValueError: It has none.
        """
        if batch.finals is None or batch.noise is None:
            raise ValueError(
                f"likelihood {method.variant.likelihood} needs the final latents and the items' noise"
            )
        self._grid, self._batch, self._beta = method.grid, batch, method.variant.nft_beta
        self._finals, self._noise_of = batch.finals, batch.noise

    def old(self, kept: Tensor) -> Tensor:
        """The sampling policy's values, which `evaluate_old` has found."""
        return kept

    def predict(self, policy: PolicyVelocity, rows: Tensor, steps: Tensor) -> NoisedPrediction:
        """Velocity at the noised states."""
        x0 = self._finals[rows]
        noise, t = self._noise_of(rows, steps).to(x0), self._grid.times[steps].to(x0)
        x = interpolate(x0, noise, t)
        velocity = policy(x, t, self._batch.conditioning.rows(rows).to(x0.device))
        return NoisedPrediction(velocity, x, x0, noise, t)

    def value(self, prediction: NoisedPrediction, rows: Tensor, steps: Tensor) -> Tensor:
        """Minus the mean squared error of the velocity."""
        return matching_value(prediction.velocity, prediction.x0, prediction.noise)

    def evaluate_old(self, prediction: NoisedPrediction, rows: Tensor, steps: Tensor) -> Tensor:
        """The value."""
        return self.value(prediction, rows, steps)

    def divergence(self, prediction: NoisedPrediction, reference: NoisedPrediction) -> Tensor:
        """Mean squared difference of the velocities."""
        return velocity_divergence(prediction.velocity, reference.velocity)


class NftValues(MatchingValues):
    """DiffusionNFT: minus its loss, which needs the sampling policy's velocities."""

    has_ratio = False

    def __init__(self, method: Method, batch: UpdateBatch) -> None:
        """Check that the batch has room for the sampling policy's velocities.

        Raises:
            ValueError: It has none, or more than one advantage for an image.
        """
        super().__init__(method, batch)
        if batch.old_means is None:
            raise ValueError("likelihood nft needs room for the old velocities: roll out with keep_means")
        if batch.advantages.ndim != 1:
            raise ValueError(f"likelihood nft needs advantages [B], got {tuple(batch.advantages.shape)}")
        self._velocities = batch.old_means
        self._good = optimality(batch.advantages, method.advantage_clip)

    def value(self, prediction: NoisedPrediction, rows: Tensor, steps: Tensor) -> Tensor:
        """Minus DiffusionNFT's loss."""
        p = prediction
        old = self._velocities[rows, steps - self._batch.first_step[rows]].to(p.x)
        good = self._good[rows].to(p.x)
        return nft_value(p.velocity, old, p.x, p.x0, p.t, good, self._beta)

    def evaluate_old(self, prediction: NoisedPrediction, rows: Tensor, steps: Tensor) -> Tensor:
        """The value; keeps the velocities in the batch's `old_means`."""
        places = steps - self._batch.first_step[rows]
        self._velocities[rows, places] = prediction.velocity.to(self._velocities)
        return self.value(prediction, rows, steps)


_KINDS: Mapping[Likelihood, Callable[[Method, UpdateBatch], StepValues]] = implemented(
    LIKELIHOODS,
    "training/step_values.py",
    {"transition": TransitionValues, "matching": MatchingValues, "nft": NftValues},
)
