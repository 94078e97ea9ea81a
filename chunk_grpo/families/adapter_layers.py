"""Layers of a network by the names that programs give them: those of diffusers, or of the model's original code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from diffusers.models.normalization import AdaLayerNormContinuous
from torch import nn

LayerNames: TypeAlias = Mapping[tuple[str, str], Mapping[str, str]]
"""Layers in the original code. By the names of a block there and in diffusers, with {} for its number: the name of each
layer there, and its names in diffusers, in the order of the rows."""


@dataclass(frozen=True)
class Place:
    """Where the rows of a layer of a file go."""

    layers: tuple[str, ...]
    """Names in the network."""
    swapped: bool = False
    """Whether the network has the two halves of the rows in the other order."""


def places(network: nn.Module, names: LayerNames) -> dict[str, Place]:
    """Places of linear and convolutional layers by each of their names, with dots and with underscores."""
    modules = dict(network.named_modules())
    found = {n: Place((n,)) for n, module in modules.items() if isinstance(module, nn.Linear | nn.Conv2d)}
    blocks = 1 + max((int(part) for name in modules for part in name.split(".") if part.isdigit()), default=0)
    for (original, own), layers in names.items():
        for number in range(blocks if "{}" in own else 1):
            for layer, targets in layers.items():
                there = tuple(f"{own}{target}".format(number) for target in targets.split())
                if all(name in modules for name in there):
                    # Original code has shift and scale in this order, diffusers' class the other way round.
                    parent = modules[there[0].rpartition(".")[0]]
                    swapped = isinstance(parent, AdaLayerNormContinuous)
                    found.setdefault(f"{original}{layer}".format(number), Place(there, swapped))
    return {name.replace(".", "_"): place for name, place in found.items()} | found
