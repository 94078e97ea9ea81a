"""Temporal dynamics of a trajectory: how much each step changes the latent."""

from torch import Tensor

from chunk_grpo.core.precision import at_least_float32


def relative_l1(states: Tensor) -> Tensor:
    """Relative L1 distance of each step.

    Paper: Eq. (15); its x_t is the state before the step and x_{t-1} the state after it.

    Args:
        states: A trajectory [B, S + 1, L, D] from noise to image.

    Returns:
        [B, S], at least 0, in float32 or wider; entry s is step s.

    Raises:
        ValueError: Another shape, fewer than two states, or a state of zero norm before a step.
    """
    if states.ndim != 4 or states.shape[1] < 2:
        raise ValueError(f"states must have shape [B, S + 1, L, D] with S >= 1, got {tuple(states.shape)}")
    x = at_least_float32(states)
    change = (x[:, 1:] - x[:, :-1]).abs().sum(dim=(2, 3))
    size = x[:, :-1].abs().sum(dim=(2, 3))
    if not bool((size > 0).all()):
        raise ValueError("a state before a step must have a positive L1 norm, got 0")
    return change / size
