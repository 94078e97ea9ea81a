"""The few types that the modules of core share."""

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
    """The Gaussian from which an SDE step draws the next state.

    Attributes:
        mean: Its mean [B, L, D].
        std: Its standard deviation, the same for every latent dimension: a scalar tensor, or [B] where the
            step differs from sample to sample.
    """

    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class Trajectory:
    """A batch of SDE rollouts, stored exactly as drawn.

    Paper: Eq. (11), its x_T, ..., x_0 being `states[:, 0]`, ..., `states[:, S]`.

    Attributes:
        times: The time grid, float64 [S + 1], falling from 1 to 0.
        states: The latents [B, S + 1, L, D], float32 or wider; `states[:, s]` is at noise level `times[s]`.
        transition_stds: Standard deviation of each noisy step, float64 [S - 1], positive; 0 marks a step that
            the rollout took without noise, which cannot be trained.
        log_probs: Log-density of each noisy step, mean over latent dimensions, [B, S - 1]; 0 where the step
            was taken without noise.
        means: Mean of the Gaussian that each noisy step drew from, [B, S - 1, L, D]; the next state where the step
            was taken without noise. None unless the rollout was asked to keep them.
    """

    times: Tensor
    states: Tensor
    transition_stds: Tensor
    log_probs: Tensor
    means: Tensor | None = None
