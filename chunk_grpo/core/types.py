"""Types shared by the modules of core."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

Velocity: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(x [B, L, D], t [B] in (0, 1]) -> velocity [B, L, D]; the model with its prompt already bound."""

PerSample: TypeAlias = float | Tensor
"""One value for the whole batch (a float or a scalar tensor) or one for each sample (a tensor [B])."""


@dataclass(frozen=True)
class Transition:
    """The Gaussian from which an SDE step draws the next state."""

    mean: Tensor
    """Mean [B, L, D]."""
    std: Tensor
    """Standard deviation, the same for every latent dimension: a scalar tensor, or [B] if the step differs between
    samples. On the device of the times and noise strengths, usually the CPU."""


@dataclass(frozen=True)
class Trajectory:
    """A batch of SDE rollouts, stored exactly as drawn.

    Paper: Eq. (11), its x_T, ..., x_0 being `states[:, 0]`, ..., `states[:, S]`.
    """

    times: Tensor
    """Time grid, float64 [S + 1], falling from 1 to 0."""
    states: Tensor
    """Latents [B, S + 1, L, D], float32 or wider; `states[:, s]` is at noise level `times[s]`."""
    transition_stds: Tensor
    """Standard deviation of each noisy step, float64 [S - 1], positive; 0 marks a step without noise, which cannot be
    trained."""
    log_probs: Tensor
    """Log-density of each noisy step, mean over latent dimensions, [B, S - 1]; 0 for steps without noise."""
    means: Tensor | None = None
    """Mean of each noisy step's Gaussian, [B, S - 1, L, D]; the next state for steps without noise. None unless
    `keep_means` was set."""
    predicted: Tensor | None = None
    """Data that the velocity predicts at the beginning of the steps of `predict_at`, in the order of the steps,
    [B, K, L, D] for K of them. None unless `predict_at` was set."""
