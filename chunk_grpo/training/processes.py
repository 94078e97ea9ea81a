"""The processes of a distributed training, which accelerate finds; usually there is one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from chunk_grpo.environment import PROCESSES
from chunk_grpo.errors import ConfigError, TransientError
from chunk_grpo.families.sharding import shard_weights
from chunk_grpo.parallel import results_of_all

T = TypeVar("T")

_PATIENCE = timedelta(days=7)
"""Timeout of processes that wait for a busy one. If that one dies, its connections close and they fail at once."""


class Processes:
    """Collective operations of the trainer. All processes must call the methods that communicate."""

    def __init__(self, *, shards_weights: bool = False, keeps_shards_inside: bool = False) -> None:
        """Join the process group and select this process's GPU.

        Processes and devices come from accelerate's environment. A program that uses the library may have an
        Accelerator of its own, whose settings stay as they are.

        Args:
            shards_weights: Whether to shard the weights over the processes. Otherwise each process holds all weights.
            keeps_shards_inside: Whether the processes of each machine hold all shards (hybrid sharding).

        Raises:
            ConfigError: accelerate does not see all started processes, or is set to FSDP.
        """
        if parse_flag_from_env("ACCELERATE_USE_FSDP"):
            raise ConfigError(
                "accelerate is set to FSDP: set train.shard_weights to true instead, and run `accelerate config` again "
                "or unset ACCELERATE_USE_FSDP"
            )
        self._state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
        self._replica: DistributedDataParallel | None = None
        self._sharded: FSDPModule | None = None
        if self.count != (started := int(os.environ.get("WORLD_SIZE", "1"))):
            # Otherwise each process would train alone, and all would write the same files.
            raise ConfigError(
                f"{started} processes were started, but accelerate sees {self.count}: without GPUs it needs "
                "`accelerate launch --cpu` or ACCELERATE_USE_CPU=true"
            )
        # The default group's collectives time out after minutes, too short for a slow scorer or writing a checkpoint.
        self._patient = distributed.new_group(backend="gloo", timeout=_PATIENCE) if self.count > 1 else None
        self._mesh: DeviceMesh | None = None
        self._sharing = self.count  # processes that hold all shards together
        if shards_weights and self.count > 1:
            if keeps_shards_inside:
                self._sharing = int(os.environ.get("LOCAL_WORLD_SIZE", self.count))
            shape = (self.count // self._sharing, self._sharing) if self._sharing < self.count else (self.count,)
            names = ("machines", "processes")[-len(shape) :]
            self._mesh = init_device_mesh(self._state.device.type, shape, mesh_dim_names=names)

    @property
    def count(self) -> int:
        """Number of processes."""
        return int(self._state.num_processes)

    @property
    def index(self) -> int:
        """Rank of this process, from 0."""
        return int(self._state.process_index)

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files."""
        return bool(self._state.is_main_process)

    def shard(self, network: nn.Module, gathered: torch.dtype | None) -> None:
        """Shard the network's weights if `shards_weights` is set. This replaces its parameter objects.

        Args:
            network: Diffusers transformer.
            gathered: Floating-point type in which weights are gathered; None: their own.
        """
        if self._mesh is not None:
            shard_weights(network, self._mesh, gathered)
            self._sharded = cast(FSDPModule, network)

    def wrap(self, network: nn.Module) -> nn.Module:
        """Return the network with gradients averaged over the processes.

        It is the network itself if there is one process, or if `shard` has sharded it.
        """
        if self._mesh is not None or self.count == 1:
            return network
        device = self._state.device
        self._replica = DistributedDataParallel(network, [device] if device.type == "cuda" else None)
        return self._replica

    @contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        """Context of a forward and backward pass.

        Replicas, and machines with hybrid sharding, average their gradients in the last pass only. Processes that share
        weights average them in every pass: deferring it would take the memory of unsharded gradients.

        Args:
            last: Whether this is the last pass of the update.
        """
        if self._sharded is not None:
            self._sharded.set_requires_all_reduce(last)
        with nullcontext() if last or self._replica is None else self._replica.no_sync():
            yield

    def clip_gradient(self, parameters: Sequence[nn.Parameter], max_norm: float) -> float:
        """Clip the gradient to `max_norm`; return its norm before clipping."""
        norm = nn.utils.clip_grad_norm_(parameters, max_norm)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def largest(self, number: int) -> int:
        """Maximum over the processes, by one collective that waits for no device: it comes before every pass.

        Raises:
            TransientError: Another process has ended.
        """
        if self.count == 1:
            return number
        found = torch.tensor(number)
        try:
            distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self._patient)
        except RuntimeError as error:
            raise TransientError("another process has ended") from error
        return int(found)

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true in any process."""
        return bool(self.largest(int(flag)))

    def gather(self, items: list[Any]) -> list[Any]:
        """Items of all processes, in order of rank. Another one may be late, up to `_PATIENCE`: a scorer is slow.

        Raises:
            TransientError: Another process has ended.
        """
        return list(chain.from_iterable(self.by_all(lambda: items)))

    def by_main(self, action: Callable[[], T]) -> T:
        """Result of `action`, which the main process performs while the others wait, up to `_PATIENCE`.

        Raises:
            ChunkGrpoError: `action` failed; all processes raise the same type.
            TransientError: The main process has ended.
        """
        return self.by_all(lambda: action() if self.is_main else None)[0]  # type: ignore[return-value]

    def by_all(self, action: Callable[[], T]) -> list[T]:
        """Results of `action` in all processes, in order of rank. They may take unequally long, up to `_PATIENCE`.

        Raises:
            ChunkGrpoError: `action` failed in a process; all processes raise the error of the lowest rank.
            TransientError: Another process has ended.
        """
        return results_of_all(action, self.count, self._patient)

    @property
    def place(self) -> tuple[int, int]:
        """Rank of this process among those that hold all shards together, and their number.

        With hybrid sharding the processes of a machine hold all shards together, otherwise all processes do.
        """
        return self.index % self._sharing, self._sharing

    def padded_share(self, total: int) -> tuple[list[int], int]:
        """This process's share of `total` items, filled up to the length of the others', and its length without that.

        Processes with sharded weights must make equally many passes, so the last item may be repeated.
        """
        size = -(-total // self.count)
        first = self.index * size
        own = max(0, min(size, total - first))
        return [min(item, total - 1) for item in range(first, first + size)], own

    def share_of(self, total: int) -> range:
        """This process's share of the `total` trajectories of an update; all shares have the same size.

        Raises:
            ConfigError: `total` is not divisible by the number of processes.
        """
        if total % self.count:
            raise ConfigError(
                "train.prompts_per_iteration / train.updates_per_iteration * train.group_size (with branches, divided "
                f"by their children): must be divisible by the number of processes {self.count}, got {total}. Set "
                f"{PROCESSES} to a divisor."
            )
        size = total // self.count
        return range(self.index * size, (self.index + 1) * size)
