"""Sharding of weights over processes (FSDP2): each process holds a part of every weight and gathers it for use.

Unsharded tensors are returned unchanged.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def shard_weights(network: nn.Module, mesh: DeviceMesh, gathered: torch.dtype | None = None) -> None:
    """Shard the weights of a diffusers transformer over the processes of `mesh`, in place.

    This replaces the parameter objects: create the optimiser afterwards. All processes must perform the same passes.

    Args:
        network: Diffusers transformer; its `_no_split_modules` names the blocks.
        mesh: Device mesh of the shards, or of replicas (first dimension) of shards (second dimension).
        gathered: Floating-point type in which weights are gathered for a pass; gradients are then summed over the
            processes in float32. None: the weights' own type for both.
    """
    policy = MixedPrecisionPolicy()
    if gathered is not None:
        # Inputs keep their types: rotary embeddings are float32 in a bfloat16 pass too.
        policy = MixedPrecisionPolicy(gathered, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in [*blocks_of(network), network]:
        # The root's gathered weights are freed after each pass too. Otherwise they would be stale after the parameters
        # change without a backward pass, as when averaged weights are swapped in.
        fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=policy)


def block_names(network: nn.Module) -> list[str]:
    """Classes of the blocks that are gathered one by one."""
    return cast(list[str], network._no_split_modules)


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """The blocks, in the network's order."""
    names = block_names(network)
    return [module for module in network.modules() if type(module).__name__ in names]


def sharded_copy(network: Any, gathered: torch.dtype | None) -> Any:
    """A copy of a sharded network, sharded alike. No process holds whole weights at any time.

    Args:
        network: Diffusers transformer after `shard_weights`.
        gathered: As in `shard_weights`.
    """
    mesh = cast(DTensor, next(network.parameters())).device_mesh
    # Without data, but for tensors that are no weights: some networks keep tables of rotary embeddings.
    with init_empty_weights(include_buffers=False):
        copied = type(network).from_config(network.config)
    shard_weights(copied, mesh, gathered)
    state = {name: value.detach().clone() for name, value in network.state_dict().items()}
    copied.load_state_dict(state, assign=True)
    return copied


def is_sharded(network: nn.Module) -> bool:
    """Whether the network's weights are sharded."""
    return any(isinstance(weight, DTensor) for weight in network.parameters())


class StoredTensor(Protocol):
    """A tensor in files, of which a process reads its own part."""

    shape: torch.Size

    def part(self, like: Tensor) -> Tensor:
        """The values with the type, device and sharding of `like`, a tensor of the same shape."""
        ...


def full_tensor(tensor: Tensor) -> Tensor:
    """The unsharded tensor, on the CPU of the first process; the others get an empty one. All processes must call."""
    if not isinstance(tensor, DTensor):
        return tensor
    whole = tensor.full_tensor()
    is_first = tensor.device_mesh.get_rank() == 0
    return whole.cpu() if is_first else torch.empty(0, dtype=whole.dtype)


def local_shard(like: Tensor, given: Tensor | StoredTensor) -> Tensor:
    """This process's part of a tensor.

    Args:
        like: Tensor whose sharding is applied.
        given: Unsharded tensor, the same in all processes, or a stored tensor.
    """
    if not isinstance(given, Tensor):
        return given.part(like)
    if not isinstance(like, DTensor):
        return given
    return distribute_tensor(given.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
