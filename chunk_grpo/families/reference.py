"""The untrained policy of a family with an adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from chunk_grpo.families.base import Conditioning
from chunk_grpo.families.lora import lora_off

if TYPE_CHECKING:
    from chunk_grpo.families.diffusers_family import DiffusersFamily


class WithoutLora:
    """Policy of a family with its adapter off. Shares the family's weights."""

    def __init__(self, family: DiffusersFamily) -> None:
        """Wrap a family, whose adapter is on outside of this policy."""
        self._family = family

    # Without no_grad, DistributedDataParallel would prepare a backward pass for this forward pass, and gradient
    # checkpointing would recompute it with the adapter on.
    @torch.no_grad()
    def velocity(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        """Velocity [B, L, D] of the untrained policy, through the network set by `use_network`."""
        with lora_off(self._family.transformer):
            return self._family.velocity(x, t, conditioning)
