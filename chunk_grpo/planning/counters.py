"""Clocks and counters of a training: evaluations of the velocity network by purpose, the reward, the backward pass."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor

from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.training import trainer
from chunk_grpo.training.heldout import HeldoutEvaluation
from chunk_grpo.training.update import Update

Purpose: TypeAlias = Literal["rollout", "old", "ratio", "update", "reference", "heldout", "other"]
"""What the network is evaluated for. `old`: old log-probabilities in the update's batches; `ratio`: ratios of chunks
that are larger than a micro-batch; `update`: everything with gradients; `reference`: the KL divergence."""


@dataclass
class Count:
    """Evaluations of one purpose."""

    states: float = 0
    """Images or items whose velocity is computed."""
    passes: float = 0
    """Calls of the network."""
    images: float = 0
    """Images that are decoded."""


@dataclass
class Counters:
    """Seconds on the main thread, and counts of the network's evaluations."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by "velocity", "backward" and "reward" (decoding and scoring). Work on a background thread is not
    counted; the trainer itself counts the time that the main thread waits for it."""
    counts: dict[Purpose, Count] = field(default_factory=lambda: defaultdict(Count))
    """Evaluations by purpose."""
    results: dict[Purpose, Any] = field(default_factory=dict)
    """Last result by purpose of a function that `within` patches."""
    purpose: Purpose = "other"
    """What the network is evaluated for now."""

    @property
    def forward_states(self) -> int:
        """Number of states whose velocity was computed, with or without gradient."""
        return int(sum(count.states for count in self.counts.values()))

    @property
    def forward_calls(self) -> int:
        """Number of velocity calls."""
        return int(sum(count.passes for count in self.counts.values()))

    @property
    def backward_states(self) -> int:
        """Number of states whose velocity was computed with a graph, for a backward pass."""
        return int(self.counts["update"].states)

    def timed(self, owner: type, method: str, name: str) -> AbstractContextManager[object]:
        """Patch a method: its seconds on the main thread are added to `name`, and what it is called for is counted."""
        original: Callable[..., Any] = getattr(owner, method)

        def call(*arguments: Any, **options: Any) -> Any:
            if method == "velocity":
                self._count_velocity(len(arguments[1]))
            elif method == "decode":
                self.counts[self.purpose].images += len(arguments[1])
            start = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                if threading.current_thread() is threading.main_thread():
                    self.seconds[name] += time.perf_counter() - start

        return patch.object(owner, method, call)

    def within(self, owner: Any, function: str, purpose: Purpose) -> AbstractContextManager[object]:
        """Patch a function: what is evaluated inside it has this purpose."""
        original: Callable[..., Any] = getattr(owner, function)

        def call(*arguments: Any, **options: Any) -> Any:
            self.purpose = purpose
            try:
                self.results[purpose] = original(*arguments, **options)
            finally:
                self.purpose = "other"
            return self.results[purpose]

        return patch.object(owner, function, call)

    def _count_velocity(self, states: int) -> None:
        count = self.counts["update" if torch.is_grad_enabled() else self.purpose]
        count.states += states
        count.passes += 1
        if torch.is_grad_enabled():
            # An update computes its ratios first. What it evaluates without gradients later is the reference policy.
            self.purpose = "reference"


@contextmanager
def counting(family: type = DiffusersFamily) -> Iterator[Counters]:
    """Count and time the calls of every family, reward and backward pass inside the context.

    The classes' methods are patched, so trainer and reference run unchanged. Create them inside the context: a method
    of the family bound before is not counted.
    """
    counters = Counters()
    with (
        counters.timed(family, "velocity", "velocity"),
        counters.timed(family, "decode", "reward"),
        counters.timed(Reward, "scores", "reward"),
        counters.timed(Tensor, "backward", "backward"),
        counters.within(trainer, "collect_experience", "rollout"),
        counters.within(Update, "reevaluate_old", "old"),
        counters.within(Update, "accumulate_gradient", "ratio"),
        counters.within(HeldoutEvaluation, "evaluate", "heldout"),
    ):
        yield counters
