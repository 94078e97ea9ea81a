"""Weights that are spread over processes (FSDP2): each keeps a part of every weight, and has it whole while it is used.

Tensors that are not spread pass through all functions of this module as they are.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(network: nn.Module, mesh: DeviceMesh) -> None:
    """Spread the weights of a diffusers transformer over the processes of `mesh`, in place.

    Its parameters become other objects: give them to an optimiser after this. All processes must make the same passes.

    Args:
        network: Names its blocks in `_no_split_modules`, as diffusers' transformers do.
        mesh: One dimension.
    """
    names = cast(list[str], network._no_split_modules)
    blocks = [module for module in network.modules() if type(module).__name__ in names]
    for module in [*blocks, network]:
        # Also the outermost weights are given up after a pass. Kept, they would be old ones once the parameters have
        # changed without a backward pass, as they do where averaged weights take their place for a while.
        fully_shard(module, mesh=mesh, reshard_after_forward=True)


def gathered(tensor: Tensor) -> Tensor:
    """The whole tensor, in the CPU's memory of the first process; the others get an empty one. All must call."""
    if not isinstance(tensor, DTensor):
        return tensor
    whole = tensor.full_tensor()
    is_first = tensor.device_mesh.get_rank() == 0
    return whole.cpu() if is_first else torch.empty(0, dtype=whole.dtype)


def part_for(like: Tensor, whole: Tensor) -> Tensor:
    """Of the whole tensor, which every process has, the part that this one keeps of `like`."""
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
