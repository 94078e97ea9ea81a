"""Gradient checkpointing of some blocks: the backward pass recomputes their activations, the others' are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute(network: Any, share: float) -> None:
    """Recompute the activations of a share of the blocks, evenly spaced. The gradient is the same.

    Args:
        network: Diffusers transformer.
        share: Above 0, at most 1; of 57 blocks a half is 28.
    """
    network.enable_gradient_checkpointing(_of_share(share))


def is_of_share(place: int, share: float) -> bool:
    """Whether the block of this number is of an evenly spaced share of the blocks."""
    return int((place + 1) * share) > int(place * share)


def _of_share(share: float) -> Callable[..., Any]:
    """A function that runs a block. It numbers the blocks in the order in which they first run."""
    places: dict[nn.Module, int] = {}

    def run(block: nn.Module, *inputs: Any) -> Any:
        place = places.setdefault(block, len(places))
        if is_of_share(place, share):
            return checkpoint(block.__call__, *inputs, use_reentrant=False)
        return block(*inputs)

    return run
