"""Clocks and counters of the model's, the reward's and the backward passes' calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from chunk_grpo.families.base import Conditioning
from chunk_grpo.families.flux import FluxFamily
from chunk_grpo.scorers.base import FloatArray, ScoreBatch
from chunk_grpo.scorers.reward import Reward


@dataclass
class Account:
    """Seconds on the main thread, and counts of the model's evaluations.

    Attributes:
        seconds: Seconds by "velocity", "backward" and "reward" (decoding and scoring). Work on a background thread is
            not counted; the trainer itself counts the time that the main thread waits for it.
        forward_states: Number of states whose velocity was computed, with or without gradient.
        forward_calls: Number of velocity calls.
        backward_states: Number of states whose velocity was computed with a graph, for a backward pass.
        backward_calls: Number of calls of backward.
    """

    seconds: dict[str, float] = field(
        default_factory=lambda: {"velocity": 0.0, "backward": 0.0, "reward": 0.0}
    )
    forward_states: int = 0
    forward_calls: int = 0
    backward_states: int = 0
    backward_calls: int = 0

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time spent inside the context, on the main thread, to `what`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if threading.current_thread() is threading.main_thread():
                self.seconds[what] += time.perf_counter() - start


@contextmanager
def accounting() -> Iterator[Account]:
    """Count and time the calls of every family, reward and backward pass inside the context.

    The classes' methods are patched, so trainer and reference run unchanged. Create them inside the context: a method
    of the family bound before is not counted.
    """
    account = Account()
    velocity, decode = FluxFamily.velocity, FluxFamily.decode
    scores = Reward.scores
    backward: Callable[..., None] = Tensor.backward  # has no annotations

    def counted_velocity(family: FluxFamily, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        account.forward_calls += 1
        account.forward_states += len(x)
        account.backward_states += len(x) if torch.is_grad_enabled() else 0
        with account.timed("velocity"):
            return velocity(family, x, t, conditioning)

    def timed_decode(family: FluxFamily, latents: Tensor) -> Tensor:
        with account.timed("reward"):
            return decode(family, latents)

    def timed_scores(reward: Reward, batch: ScoreBatch) -> dict[str, FloatArray]:
        with account.timed("reward"):
            return scores(reward, batch)

    def counted_backward(loss: Tensor, *arguments: Any, **options: Any) -> None:
        account.backward_calls += 1
        with account.timed("backward"):
            backward(loss, *arguments, **options)

    with ExitStack() as replaced:
        replaced.enter_context(patch.object(FluxFamily, "velocity", counted_velocity))
        replaced.enter_context(patch.object(FluxFamily, "decode", timed_decode))
        replaced.enter_context(patch.object(Reward, "scores", timed_scores))
        replaced.enter_context(patch.object(Tensor, "backward", counted_backward))
        yield account
