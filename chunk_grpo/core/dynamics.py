"""Temporal dynamics of a trajectory: relative change of the latent in each step."""

import math
from collections.abc import Sequence

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
        ValueError: Another shape, fewer than two states, or a state before a step whose norm is 0 or not finite.
    """
    if states.ndim != 4 or states.shape[1] < 2:
        raise ValueError(f"states must have shape [B, S + 1, L, D] with S >= 1, got {tuple(states.shape)}")
    x = at_least_float32(states)
    change = (x[:, 1:] - x[:, :-1]).abs().sum(dim=(2, 3))  # [B, S]
    size = x[:, :-1].abs().sum(dim=(2, 3))  # [B, S]
    bad = ((size > 0) & size.isfinite()).logical_not().cpu().nonzero()
    if len(bad):
        row, step = bad[0].tolist()
        raise ValueError(
            f"the state before step {step} of trajectory {row} must have a positive, finite L1 norm, got "
            f"{float(size[row, step])}"
        )
    return change / size


def profile_drift(profile: Sequence[float], reference: Sequence[float]) -> float:
    """Distance between two relative-L1 curves, such as a policy's and the base's.

    mean over steps of |log(profile / reference)|. Ours: doubling and halving a step's change count the same, and a
    distance of .01 is a change of about 1 %.

    Args:
        profile: Mean relative L1 distance of each step, [N], positive; N at least 1.
        reference: Profile to compare with, [N], positive.

    Returns:
        At least 0; 0 for equal curves. Swapping the two changes nothing.

    Raises:
        ValueError: A value is not positive and finite, or the numbers of steps differ or are 0.
    """
    values, references = require_profile("profile", profile), require_profile("reference", reference)
    if len(values) != len(references) or not values:
        raise ValueError(
            "profile and reference must have the same number of steps, at least 1, "
            f"got {len(values)} and {len(references)}"
        )
    logs = zip(map(math.log, values), map(math.log, references), strict=True)
    return math.fsum(abs(log - other) for log, other in logs) / len(values)


def require_profile(name: str, profile: Sequence[float]) -> list[float]:
    """Check the values of a profile.

    Args:
        name: Name of the profile, for the message.
        profile: Values to check, [N].

    Returns:
        The values as floats.

    Raises:
        ValueError: A value is not positive and finite.
    """
    values = [float(value) for value in profile]
    if not all(value > 0 and math.isfinite(value) for value in values):
        raise ValueError(f"{name} values must be positive and finite, got {values}")
    return values
