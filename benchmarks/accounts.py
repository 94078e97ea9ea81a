"""What the model, the reward and the backward passes of some work cost: clocks and counters around them."""

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
    """Seconds of the main thread, and how often the model ran.

    Attributes:
        seconds: By "velocity", "backward" and "reward", which is decoding and scoring. What a background thread
            does costs the main one nothing but the waiting, which the trainer counts.
        forward_states: States whose velocity was computed, with gradient or without.
        forward_calls: In how many calls.
        backward_states: Of these states, those whose velocity was computed with a graph, to go back through.
        backward_calls: Calls of backward.
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
        """Add the time inside, on the main thread, to `what`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if threading.current_thread() is threading.main_thread():
                self.seconds[what] += time.perf_counter() - start


@contextmanager
def accounting() -> Iterator[Account]:
    """Inside, every family and reward and each backward pass is counted and timed.

    The classes' functions are replaced for that time, so trainer and reference run as they are shipped. Make them
    inside: what holds a function of the family from before is not counted.
    """
    account = Account()
    velocity, decode = FluxFamily.velocity, FluxFamily.decode
    scores = Reward.scores
    backward: Callable[..., None] = Tensor.backward  # which carries no annotations

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
