"""The processes that train together, through accelerate; one process is the common case."""

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
from chunk_grpo.families.sharding import shard

_PATIENCE = timedelta(days=7)
"""For the others while the main process writes. They hear at once when it ends, for its connections close."""


class Processes:
    """What the trainer asks of the other processes; each call that gathers must be made by all of them."""

    def __init__(self, *, shards_weights: bool = False) -> None:
        """Join the other processes and take this one's GPU.

        accelerate's environment names the processes and their devices. What would move results is not taken from it.

        Args:
            shards_weights: Whether weights are spread over the processes. Otherwise each holds all of them.

        Raises:
            ConfigError: There are others, but accelerate does not see them; or accelerate is set to FSDP.
        """
        if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
            # accelerate leaves it out on CPUs without a word, and then nothing could be tested without GPUs.
            raise ConfigError(
                "accelerate is set to FSDP: set train.shard_weights to true instead, and run `accelerate config` again "
                "or take ACCELERATE_USE_FSDP out of the environment"
            )
        self._accelerator = Accelerator(
            mixed_precision="no",
            dynamo_backend="no",
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        )
        self._replica: nn.Module | None = None
        if self.count != (started := int(os.environ.get("WORLD_SIZE", "1"))):
            # Each of them would train on its own, and all would write the same files.
            raise ConfigError(
                f"{started} processes were started, but accelerate sees {self.count}: without GPUs it needs "
                "`accelerate launch --cpu` or ACCELERATE_USE_CPU=true"
            )
        # Collectives of training end with an error after some minutes; those of this group do not.
        self._patient = distributed.new_group(backend="gloo", timeout=_PATIENCE) if self.count > 1 else None
        is_spread = shards_weights and self.count > 1
        self._mesh = init_device_mesh(self._accelerator.device.type, (self.count,)) if is_spread else None

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._accelerator.num_processes)

    @property
    def index(self) -> int:
        """Which one this is, from 0."""
        return int(self._accelerator.process_index)

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes."""
        return bool(self._accelerator.is_main_process)

    def spread(self, network: nn.Module) -> None:
        """Spread a network's weights over the processes where that is wanted; its parameters are other objects then."""
        if self._mesh is not None:
            shard(network, self._mesh)

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network whose gradients are averaged over the processes; itself when there is one.

        Parameters are to be asked for after this.
        """
        if self._mesh is not None or self.count == 1:
            self.spread(network)
            return network
        self._replica = self._accelerator.prepare(network)
        return self._replica

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer) -> Any:
        """The optimiser as accelerate wants it."""
        return self._accelerator.prepare(optimizer)

    @contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        """Around a forward and backward pass: gradients are averaged over the processes in the `last` one only.

        Those of spread weights are averaged in each one: waiting would take the memory of whole gradients.
        """
        with nullcontext() if last or self._replica is None else self._accelerator.no_sync(self._replica):
            yield

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients."""
        self._accelerator.backward(loss)

    def clip_gradient(self, parameters: Sequence[nn.Parameter], max_norm: float) -> float:
        """Scale the gradient down to `max_norm` if it is longer; its norm before that."""
        norm = self._accelerator.clip_grad_norm_(parameters, max_norm)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def largest(self, number: int) -> int:
        """The largest of the processes' numbers."""
        return number if self.count == 1 else max(self.gather([number]))

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        return bool(self.largest(int(flag)))

    def gather(self, items: list[Any]) -> list[Any]:
        """All processes' items, in the order of the processes."""
        return items if self.count == 1 else list(gather_object(items))

    def by_main(self, write: Callable[[], object]) -> None:
        """Have the main process write something while the others wait, however long that takes.

        Raises:
            ChunkGrpoError: Writing failed; of the same type in all processes.
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
        """This process's part of `total` things, as large as that of each other process.

        Raises:
            ConfigError: They cannot be shared out evenly.
        """
        if total % self.count:
            raise ConfigError(
                f"{what}: must be divisible by the number of processes {self.count}, got {total}"
            )
        size = total // self.count
        return range(self.index * size, (self.index + 1) * size)


@contextmanager
def _announced() -> Iterator[None]:
    """Inside, the file that the launcher looks at is there."""
    if SAVING not in os.environ:
        yield
        return
    file = Path(os.environ[SAVING])
    file.touch()
    try:
        yield
    finally:
        file.unlink()
