"""Frozen weights of a byte or half a byte (torchao): of text encoders, and of a base that has an adapter."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from chunk_grpo.config.models import BasePrecision
from chunk_grpo.errors import ConfigError
from chunk_grpo.families.sharding import blocks_of
from chunk_grpo.families.swapping import swapped_weights

_BLOCK = 64
"""Weights with a common scale in `nf4`, and what the number of a layer's weights must be a multiple of."""

_SCALES = 256
"""Most scales of `nf4` that have a common scale themselves."""


def quantise(
    network: nn.Module, precision: BasePrecision, device: torch.device | str, key: str = "model.base_precision"
) -> None:
    """Quantise the linear layers of the blocks, and move the network to `device`, in place.

    Embeddings, modulation outside the blocks and the last layer keep their type. Each layer is quantised on the device,
    so that no more than one is there unquantised. The same weights give the same bytes there.

    Args:
        network: Frozen network of diffusers or transformers.
        precision: Kind of the quantised weights.
        device: Device of the network.
        key: Key of params.yaml with the precision, for the message.

    Raises:
        ConfigError: torchao is not installed.
    """
    made = quantiser(precision, key)
    for layer in layers_of_blocks(network):
        weight = layer.weight.detach().to(device)
        layer.weight = nn.Parameter(made(weight), requires_grad=False)
    network.to(device)


def layers_of_blocks(network: nn.Module) -> list[nn.Linear]:
    """The layers that are quantised."""
    return [
        layer
        for layer in dict.fromkeys(module for block in blocks_of(network) for module in block.modules())
        if isinstance(layer, nn.Linear) and layer.weight.numel() % _BLOCK == 0
    ]


def quantiser(precision: BasePrecision, key: str) -> Callable[[Tensor], Tensor]:
    """Function that quantises a matrix of weights; ConfigError if torchao is not installed."""
    try:
        from torchao.quantization import Float8Tensor, Int8Tensor, PerRow, to_nf4
    except ImportError as error:
        raise ConfigError(
            f"{key}: {precision} needs torchao, which cannot be imported ({error}); run "
            "`pip install 'torchao>=0.18,<0.19'`, or set null"
        ) from error

    def nf4(weight: Tensor) -> Any:
        return to_nf4(weight, _BLOCK, math.gcd(weight.numel() // _BLOCK, _SCALES))

    rows: dict[str, Callable[[Tensor], Any]] = {
        "int8": lambda weight: Int8Tensor.from_hp(weight, granularity=PerRow()),
        "float8": lambda weight: Float8Tensor.from_hp(weight, granularity=PerRow()),
        "nf4": nf4,
    }
    return rows[precision]


def leave_out_of_replicas(network: nn.Module) -> None:
    """Let DistributedDataParallel pass over weights that it cannot send, which are the same in all processes.

    They are quantised, or swapped.
    """
    network._ddp_params_and_buffers_to_ignore = frozen_weights(network)  # type: ignore[assignment]  # torch's name


def frozen_weights(network: nn.Module) -> list[str]:
    """Names of the quantised and swapped weights of a network that is not sharded."""
    return [*(name for name, weight in network.named_parameters() if _is_quantised(weight)), *swapped_weights(network)]


def parts(weight: Any) -> Iterator[Tensor]:
    """The tensors that hold the values of a weight, quantised or not."""
    names = weight.__tensor_flatten__()[0] if _is_quantised(weight) else ()
    yield from (getattr(weight, name) for name in names) if names else (weight,)


def has_nf4(network: nn.Module) -> bool:
    """Whether weights of the network are `nf4`."""
    return any(type(weight).__name__ == "NF4Tensor" for weight in network.parameters())


def _is_quantised(weight: Any) -> bool:
    return is_traceable_wrapper_subclass(weight)


@contextmanager
def without_remark_on_merging() -> Iterator[None]:
    """Context without peft's remark that an adapter cannot be merged into quantised weights, which nobody does here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TorchaoLoraLinear was instantiated without")
        yield
