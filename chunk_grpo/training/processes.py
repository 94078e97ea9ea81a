"""The processes that train together, through accelerate; one process is the common case."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, gather_object
from torch import Tensor, nn

from chunk_grpo.errors import ConfigError


class Processes:
    """What the trainer asks of the other processes; each call that gathers must be made by all of them."""

    def __init__(self) -> None:
        """Join the other processes and take this one's GPU.

        accelerate's environment names the processes and their devices. What would move results is not taken from it.

        Raises:
            ConfigError: There are others, but accelerate does not see them; or weights shall be spread over processes.
        """
        if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
            # On GPUs the checkpoints would hold a part of the weights; on CPUs accelerate leaves FSDP out silently.
            raise ConfigError(
                "accelerate is set to FSDP, but every process has to hold all weights: run `accelerate config` again, "
                "or take ACCELERATE_USE_FSDP out of the environment. LoRA (train.lora) needs less memory"
            )
        self._accelerator = Accelerator(
            mixed_precision="no",
            dynamo_backend="no",
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        )
        self._network: nn.Module | None = None
        if self.count != (started := int(os.environ.get("WORLD_SIZE", "1"))):
            # Each of them would train on its own, and all would write the same files.
            raise ConfigError(
                f"{started} processes were started, but accelerate sees {self.count}: without GPUs it needs "
                "`accelerate launch --cpu` or ACCELERATE_USE_CPU=true"
            )

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

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network whose gradients are averaged over the processes; itself when there is one."""
        if self.count > 1:
            self._network = self._accelerator.prepare(network)
            return self._network
        return network

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer) -> Any:
        """The optimiser as accelerate wants it."""
        return self._accelerator.prepare(optimizer)

    @contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        """Around a forward and backward pass: gradients are averaged over the processes in the `last` one only."""
        with nullcontext() if last or self._network is None else self._accelerator.no_sync(self._network):
            yield

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients."""
        self._accelerator.backward(loss)

    def clip_gradient(self, parameters: Sequence[nn.Parameter], max_norm: float) -> float:
        """Scale the gradient down to `max_norm` if it is longer; its norm before that."""
        return float(self._accelerator.clip_grad_norm_(parameters, max_norm))

    def largest(self, number: int) -> int:
        """The largest of the processes' numbers."""
        return number if self.count == 1 else max(self.gather([number]))

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        return bool(self.largest(int(flag)))

    def gather(self, items: list[Any]) -> list[Any]:
        """All processes' items, in the order of the processes."""
        return items if self.count == 1 else list(gather_object(items))

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
