"""Arithmetic precision: states and densities are float32 or wider for any precision of the model."""

import torch
from torch import Tensor

from chunk_grpo.core.types import PerSample


def at_least_float32(x: Tensor) -> Tensor:
    """Upcast half-precision tensors.

    bfloat16 has 8 significant bits: a state rounded to it after each step drifts, and log-probabilities change by
    more than the clip range.

    Args:
        x: Any floating-point tensor.

    Returns:
        `x` itself in float32 and float64, a float32 copy otherwise.
    """
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)


def exact(value: PerSample) -> Tensor:
    """Convert a float or tensor to float64, so that differences of nearby times are exact before rounding.

    Args:
        value: A float, a scalar tensor or a tensor [B].

    Returns:
        The value in float64, shape () or [B].

    Raises:
        ValueError: The tensor has more than one dimension.
    """
    tensor = torch.as_tensor(value, dtype=torch.float64)
    if tensor.ndim > 1:
        raise ValueError(f"a per-sample value must be a scalar or have shape [B], got shape {tuple(tensor.shape)}")
    return tensor


def broadcast(value: PerSample, like: Tensor) -> Tensor:
    """Reshape a per-sample value so that it broadcasts to `like`, with its dtype.

    Args:
        value: A float, a scalar tensor or a tensor [B].
        like: A tensor [B, ...].

    Returns:
        The value with shape [B, 1, ..., 1] on the device of `like`; or with shape (), then a value of the CPU stays
        there, since it combines with a tensor of any device and moving it would wait for the device.

    Raises:
        ValueError: The value has the wrong number of entries.
    """
    tensor = exact(value).to(like.dtype)
    if tensor.ndim == 0:
        return tensor if tensor.device.type == "cpu" else tensor.to(like.device)
    if tensor.shape[0] != like.shape[0]:
        raise ValueError(f"a per-sample value must have one entry per sample ({like.shape[0]}), got {tensor.shape[0]}")
    return tensor.to(like.device).reshape(-1, *[1] * (like.ndim - 1))
