"""Arithmetic precision: states and densities are float32 or wider, whatever the model computes in."""

import torch
from torch import Tensor

from chunk_grpo.core.types import PerSample


def at_least_float32(x: Tensor) -> Tensor:
    """Upcast half-precision tensors.

    bfloat16 keeps 8 bits: a state that is rounded to it after each step drifts, and a log-probability moves
    by more than the clip range.

    Args:
        x: Any floating-point tensor.

    Returns:
        `x` itself in float32 and float64, a float32 copy otherwise.
    """
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)


def exact(value: PerSample) -> Tensor:
    """A float or tensor as float64, so that differences of nearby times lose nothing before they are rounded.

    Args:
        value: A float, a scalar tensor or a tensor [B].

    Returns:
        The value in float64, shape () or [B].

    Raises:
        ValueError: The tensor has more than one dimension.
    """
    tensor = torch.as_tensor(value, dtype=torch.float64)
    if tensor.ndim > 1:
        raise ValueError(
            f"a per-sample value must be a scalar or have shape [B], got shape {tuple(tensor.shape)}"
        )
    return tensor


def broadcast(value: PerSample, like: Tensor) -> Tensor:
    """A per-sample value in the dtype and on the device of `like`, shaped to multiply it.

    Args:
        value: A float, a scalar tensor or a tensor [B].
        like: A tensor [B, ...].

    Returns:
        The value with shape () or [B, 1, ..., 1].

    Raises:
        ValueError: The value has the wrong number of entries.
    """
    tensor = exact(value).to(device=like.device, dtype=like.dtype)
    if tensor.ndim == 0:
        return tensor
    if tensor.shape[0] != like.shape[0]:
        raise ValueError(
            f"a per-sample value must have one entry a sample ({like.shape[0]}), got {tensor.shape[0]}"
        )
    return tensor.reshape(-1, *[1] * (like.ndim - 1))
