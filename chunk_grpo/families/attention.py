"""The attention backend of a diffusers transformer: set it, and find out whether it works here."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from diffusers import attention_backend as active_backend
from torch import Tensor

from chunk_grpo.errors import ConfigError

_TOKENS = 64
"""Tokens of each stream in the trial: some kernels have a least number."""


def set_backend(network: Any, backend: str) -> None:
    """Set the attention backend of this network alone.

    Args:
        network: Diffusers transformer.
        backend: Name in diffusers.

    Raises:
        ConfigError: A package that the backend needs is missing.
    """
    try:
        # set_attention_backend also makes it the default of all other networks; leaving the context restores that.
        with active_backend("native"):
            network.set_attention_backend(backend)
    except Exception as error:  # ValueError, RuntimeError, ImportError; the hub has classes of its own
        raise ConfigError(_refusal(backend, error)) from error


def check_backend(backend: str) -> None:
    """Check that the packages here have a backend, without a network; whether it works is tried where it runs.

    Args:
        backend: Name in diffusers.

    Raises:
        ConfigError: A package that the backend needs is missing.
    """
    try:
        with active_backend(backend):
            pass
    except Exception as error:  # as in set_backend
        raise ConfigError(_refusal(backend, error)) from error


def leave_out_cudnn() -> None:
    """Take cuDNN's attention out of torch's choice, in the whole process.

    torch 2.11 prefers it on Hopper GPUs, where training of FLUX's networks ended with gradients that are not finite, or
    an illegal memory access. A likely cause is the cache of its backward pass, whose key lacks the gradient's layout
    (pytorch 02a4a0f, aten/src/ATen/native/cudnn/MHA.cpp): FLUX's two kinds of blocks have gradients of two layouts.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def try_backend(network: Any, backend: str, precision: AbstractContextManager[object], *, trains: bool) -> None:
    """Run one attention layer of the network on a few random tokens; the weights must be whole.

    Args:
        network: Diffusers transformer on its device, with `backend` set.
        backend: Name of the backend, for the message.
        precision: Context of a pass, such as autocast.
        trains: Whether the gradient must come back too.

    Raises:
        ConfigError: The backend does not support the device, the type or the gradient.
    """
    layer = cast(Any, next(module for module in network.modules() if hasattr(module, "processor")))
    # Weights of swapped blocks are elsewhere.
    device, dtype = network.device, layer.to_q.weight.dtype
    inputs = torch.ones(1, _TOKENS, layer.to_q.in_features, device=device, dtype=dtype)
    inputs = (inputs * torch.linspace(-1, 1, _TOKENS, device=device, dtype=dtype)[:, None]).requires_grad_(trains)
    text = None if getattr(layer, "added_kv_proj_dim", None) is None else inputs
    values: list[Tensor] = []
    handle = layer.to_v.register_forward_hook(lambda module, given, found: values.append(found))
    try:
        with torch.set_grad_enabled(trains), precision:
            found = layer(inputs, encoder_hidden_states=text)
        output = found[0] if isinstance(found, tuple) else found
        if not bool(torch.isfinite(output).all()):
            raise ValueError("its output is not finite")
        if trains and not _has_gradient(output, values[0]):
            raise ValueError("it gives no gradient")
    except Exception as error:  # every kernel has errors of its own
        raise ConfigError(_refusal(backend, error, f" on {device.type} in {dtype}")) from error
    finally:
        handle.remove()


def _has_gradient(output: Tensor, values: Tensor) -> bool:
    if not output.requires_grad:
        return False
    found: list[Tensor | None] = list(torch.autograd.grad(output.float().sum(), [values], allow_unused=True))
    return all(gradient is not None and bool(torch.isfinite(gradient).all()) for gradient in found)


def _refusal(backend: str, error: Exception, where: str = "") -> str:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return (
        f"model.attention_backend: {backend} does not work{where} ({reason}); install what it needs, set another one, "
        "or null for torch's choice"
    )
