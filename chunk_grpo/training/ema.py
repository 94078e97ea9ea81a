"""Exponential moving average of the trained weights, and a context in which the network holds the averages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from chunk_grpo.families.sharding import StoredTensor, local_shard

Decay: TypeAlias = Callable[[int], float]
"""Number k of optimiser steps so far -> decay in [0, 1); 0: the average equals the latest weights."""


def constant(decay: float) -> Decay:
    """The same decay at each step."""
    return lambda k: decay


def warming(decay: float) -> Decay:
    """min((1 + k) / (10 + k), decay): 2 / 11 at first, so that the initial weights are soon forgotten.

    Source: flow_grpo and DiffusionNFT's code.
    """
    return lambda k: min((1 + k) / (10 + k), decay)


def rising(rate: float, limit: float, flat: int) -> Decay:
    """0 for k < flat, and then min(rate (k - flat), limit). Source: the old policy of DiffusionNFT's code."""
    return lambda k: min(rate * max(k - flat, 0), limit)


class ExponentialMovingAverage:
    """average <- decay * average + (1 - decay) * weight, starting from the initial weights."""

    def __init__(self, parameters: Iterable[nn.Parameter], decay: Decay) -> None:
        """Start at the current values of the parameters.

        Args:
            parameters: Parameters to average, in float32 or wider, for half precision rounds the small steps of an
                average away. The objects are kept; the model must not replace them.
            decay: Function from the number of optimiser steps so far.

        """
        self._parameters = list(parameters)
        self._averages = [parameter.detach().clone() for parameter in self._parameters]
        self._decay = decay
        self._swapped = False

    def update(self, updates: int) -> None:
        """Add the current values of the parameters.

        Args:
            updates: Number k of optimiser steps since the start of training.

        Raises:
            ValueError: Called inside `averaged`.
        """
        self._require_own_weights("update")
        step = get_ema_multi_avg_fn(self._decay(updates))
        step(self._averages, [parameter.detach() for parameter in self._parameters], None)

    def state(self) -> list[Tensor]:
        """The averages in the order of the parameters, sharded or not.

        They are not copied: save them before the next update.

        Raises:
            ValueError: Called inside `averaged`.
        """
        self._require_own_weights("state")
        return list(self._averages)

    def load_state(self, averages: Sequence[Tensor | StoredTensor]) -> None:
        """Restore the result of `state`.

        Raises:
            ValueError: Number or shapes do not match the parameters, or called inside `averaged`.
        """
        self._require_own_weights("load_state")
        found, wanted = [tuple(a.shape) for a in averages], [tuple(a.shape) for a in self._averages]
        if found != wanted:
            raise ValueError(f"averages must have the shapes {wanted} of the parameters, got {found}")
        for average, given in zip(self._averages, averages, strict=True):
            average.copy_(local_shard(average, given))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the block the parameters hold the averages; afterwards their own values, bit for bit.

        Values are swapped in place, one parameter at a time, which takes the memory of one parameter. Everything that
        shares the storage (a wrapped network, a reference to the state dict) holds the averages too. Do not train
        inside the block.

        Raises:
            ValueError: Called inside another `averaged` block.
        """
        self._require_own_weights("averaged")
        exchange(self._parameters, self._averages)
        self._swapped = True
        try:
            yield
        finally:
            exchange(self._parameters, self._averages)
            self._swapped = False

    def _require_own_weights(self, what: str) -> None:
        if self._swapped:
            raise ValueError(f"{what} is not possible inside averaged(): the parameters hold the averages")


@torch.no_grad()
def exchange(weights: Iterable[Tensor], others: Iterable[Tensor]) -> None:
    """Exchange the values of two lists of tensors in place, bit for bit, one pair at a time.

    Args:
        weights: Weights of a network.
        others: As many tensors of the same shapes and types, on any device.
    """
    for weight, other in zip(weights, others, strict=True):
        held = weight.detach().to(other.device, copy=True)
        weight.copy_(other)
        other.copy_(held)
