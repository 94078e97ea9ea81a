"""Block swap: frozen weights that stay in the CPU's memory, and come to the GPU layer by layer while they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from chunk_grpo.families.recomputing import is_of_share
from chunk_grpo.families.sharding import blocks_of


class SwappedLinear(nn.Linear):
    """A linear layer with frozen weights in the CPU's memory. A pass copies them to the device of its inputs.

    The copy is freed after the layer, or, if there is a backward pass, after that of the layer; so blocks with such
    layers have to be recomputed, else the copies of all of them wait for it.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Stay as it is when the network moves to a device."""
        del fn, recurse
        return self

    def forward(self, x: Tensor) -> Tensor:
        """As of the layer with its weights on the device."""
        weight, *bias = (held.to(x.device, non_blocking=True) for held in self.parameters())
        return functional.linear(x, weight, *bias)


def swap(network: nn.Module, share: float, device: torch.device | str) -> None:
    """Move a network to `device`, in place, but for the linear layers of a share of its blocks, evenly spaced.

    Args:
        network: Frozen diffusers transformer, in the CPU's memory.
        share: Above 0, at most 1; of 57 blocks a half is 28.
        device: Device of the network.
    """
    for place, block in enumerate(blocks_of(network)):
        for layer in block.modules() if is_of_share(place, share) else ():
            if type(layer) is nn.Linear:
                layer.__class__ = SwappedLinear
                if torch.device(device).type == "cuda":  # a copy from pinned memory does not wait for queued work
                    for weight in layer.parameters():
                        weight.data = weight.data.pin_memory()
    network.to(device)


def swapped_weights(network: nn.Module) -> list[str]:
    """Names of the weights that stay in the CPU's memory."""
    return [
        f"{name}.{weight}"
        for name, layer in network.named_modules()
        if isinstance(layer, SwappedLinear)
        for weight, _ in layer.named_parameters()
    ]
