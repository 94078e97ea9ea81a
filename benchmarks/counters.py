"""Clocks and counters of the calls of the velocity network, the reward and the backward pass."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.scorers.reward import Reward


@dataclass
class Counters:
    """Seconds on the main thread, and counts of the network's evaluations."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by "velocity", "backward" and "reward" (decoding and scoring). Work on a background thread is not
    counted; the trainer itself counts the time that the main thread waits for it."""
    forward_states: int = 0
    """Number of states whose velocity was computed, with or without gradient."""
    forward_calls: int = 0
    """Number of velocity calls."""
    backward_states: int = 0
    """Number of states whose velocity was computed with a graph, for a backward pass."""

    def timed(self, owner: type, method: str, name: str) -> AbstractContextManager[object]:
        """Patch a method: its seconds on the main thread are added to `name`."""
        original: Callable[..., Any] = getattr(owner, method)

        def call(*arguments: Any, **options: Any) -> Any:
            if name == "velocity":
                self._count(arguments[1])
            start = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                if threading.current_thread() is threading.main_thread():
                    self.seconds[name] += time.perf_counter() - start

        return patch.object(owner, method, call)

    def _count(self, x: Tensor) -> None:
        self.forward_calls += 1
        self.forward_states += len(x)
        self.backward_states += len(x) if torch.is_grad_enabled() else 0


@contextmanager
def counting() -> Iterator[Counters]:
    """Count and time the calls of every family, reward and backward pass inside the context.

    The classes' methods are patched, so trainer and reference run unchanged. Create them inside the context: a method
    of the family bound before is not counted.
    """
    counters = Counters()
    with (
        counters.timed(FluxFamily, "velocity", "velocity"),
        counters.timed(FluxFamily, "decode", "reward"),
        counters.timed(Reward, "scores", "reward"),
        counters.timed(Tensor, "backward", "backward"),
    ):
        yield counters
