"""The processes of a distributed training, through accelerate; usually there is one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, gather_object
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from chunk_grpo.environment import SAVING
from chunk_grpo.errors import ChunkGrpoError, ConfigError, TransientError
from chunk_grpo.families.sharding import shard_weights

_PATIENCE = timedelta(days=7)
"""Timeout of the other processes while the main one writes. If it dies, its connections close and they fail at once."""


class Processes:
    """Collective operations of the trainer. All processes must call the methods that communicate."""

    def __init__(self, *, shards_weights: bool = False) -> None:
        """Join the process group and select this process's GPU.

        Processes and devices come from accelerate's environment. Its settings that affect results are ignored.

        Args:
            shards_weights: Whether to shard the weights over the processes. Otherwise each process holds all weights.

        Raises:
            ConfigError: accelerate does not see all started processes, or is set to FSDP.
        """
        if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
            # accelerate silently ignores FSDP on CPUs, so it could not be tested without GPUs.
            raise ConfigError(
                "accelerate is set to FSDP: set train.shard_weights to true instead, and run `accelerate config` again "
                "or unset ACCELERATE_USE_FSDP"
            )
        self._accelerator = Accelerator(
            mixed_precision="no",
            dynamo_backend="no",
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        )
        self._replica: nn.Module | None = None
        if self.count != (started := int(os.environ.get("WORLD_SIZE", "1"))):
            # Otherwise each process would train alone, and all would write the same files.
            raise ConfigError(
                f"{started} processes were started, but accelerate sees {self.count}: without GPUs it needs "
                "`accelerate launch --cpu` or ACCELERATE_USE_CPU=true"
            )
        # The default group's collectives time out after minutes, which is too short for writing a checkpoint.
        self._patient = distributed.new_group(backend="gloo", timeout=_PATIENCE) if self.count > 1 else None
        is_spread = shards_weights and self.count > 1
        self._mesh = init_device_mesh(self._accelerator.device.type, (self.count,)) if is_spread else None

    @property
    def count(self) -> int:
        """Number of processes."""
        return int(self._accelerator.num_processes)

    @property
    def index(self) -> int:
        """Rank of this process, from 0."""
        return int(self._accelerator.process_index)

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files."""
        return bool(self._accelerator.is_main_process)

    def shard(self, network: nn.Module, gathered: torch.dtype | None) -> None:
        """Shard the network's weights if `shards_weights` is set. This replaces its parameter objects.

        Args:
            network: Diffusers transformer.
            gathered: Floating-point type in which weights are gathered; None: their own.
        """
        if self._mesh is not None:
            shard_weights(network, self._mesh, gathered)

    def wrap(self, network: nn.Module) -> nn.Module:
        """Return the network with gradients averaged over the processes.

        It is the network itself if there is one process, or if `shard` has sharded it.
        """
        if self._mesh is not None or self.count == 1:
            return network
        self._replica = self._accelerator.prepare(network)
        return self._replica

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer) -> Any:
        """Return the optimiser wrapped by accelerate."""
        return self._accelerator.prepare(optimizer)

    @contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        """Context of a forward and backward pass. Replicas average their gradients in the last pass only.

        Sharded weights average them in every pass: deferring it would take the memory of unsharded gradients.

        Args:
            last: Whether this is the last pass of the update.
        """
        with nullcontext() if last or self._replica is None else self._accelerator.no_sync(self._replica):
            yield

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients."""
        self._accelerator.backward(loss)

    def clip_gradient(self, parameters: Sequence[nn.Parameter], max_norm: float) -> float:
        """Clip the gradient to `max_norm`; return its norm before clipping."""
        norm = self._accelerator.clip_grad_norm_(parameters, max_norm)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def largest(self, number: int) -> int:
        """Maximum over the processes."""
        return number if self.count == 1 else max(self.gather([number]))

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true in any process."""
        return bool(self.largest(int(flag)))

    def gather(self, items: list[Any]) -> list[Any]:
        """Items of all processes, in order of rank."""
        return items if self.count == 1 else list(gather_object(items))

    def by_main(self, write: Callable[[], object]) -> None:
        """Call `write` in the main process while the others wait, up to `_PATIENCE`.

        Raises:
            ChunkGrpoError: `write` failed; all processes raise the same type.
            TransientError: The main process has ended.
        """
        if self.count == 1:
            write()
            return
        failure: list[ChunkGrpoError | None] = [None]
        if self.is_main:
            try:
                with _announced():
                    write()
            except ChunkGrpoError as error:
                failure = [error]
        try:
            distributed.broadcast_object_list(failure, src=0, group=self._patient)
        except RuntimeError as error:
            raise TransientError("another process has ended while the main one wrote a checkpoint") from error
        if failure[0] is not None:
            raise failure[0]

    def share_of(self, total: int, what: str) -> range:
        """This process's share of `total` items; all shares have the same size.

        Args:
            total: Number of items of all processes.
            what: Name of the number, for the error message.

        Raises:
            ConfigError: `total` is not divisible by the number of processes.
        """
        if total % self.count:
            raise ConfigError(
                f"{what}: must be divisible by the number of processes {self.count}, got {total}"
            )
        size = total // self.count
        return range(self.index * size, (self.index + 1) * size)


@contextmanager
def _announced() -> Iterator[None]:
    """Inside the block the file named by `environment.SAVING` exists; the launcher waits for it."""
    if SAVING not in os.environ:
        yield
        return
    file = Path(os.environ[SAVING])
    file.touch()
    try:
        yield
    finally:
        file.unlink()
