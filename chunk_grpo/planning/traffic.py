"""Bytes that a GPU receives in an iteration of training, by collective."""

from __future__ import annotations

from dataclasses import dataclass

from chunk_grpo.planning.passes import Iteration
from chunk_grpo.planning.settings import Settings

FLOAT32 = 4


@dataclass(frozen=True)
class Traffic:
    """Bytes that one GPU receives.

    Attributes:
        gathered: All-gathers of sharded weights.
        reduced: Reduce-scatters of gradients, float32.
        averaged: All-reduces of replicas' gradients, float32.
    """

    gathered: float
    reduced: float
    averaged: float

    @property
    def bytes(self) -> float:
        """Sum."""
        return self.gathered + self.reduced + self.averaged


def sweep_bytes(settings: Settings) -> float:
    """Weights that a pass of the network gathers: the network in the checkpoint's type, an adapter in float32."""
    adapter = settings.tuning.adapter
    extra = 0 if adapter is None else FLOAT32 * adapter.weights
    return float(settings.tuning.network.weights * settings.element + extra)


def traffic_of(settings: Settings, iteration: Iteration, heldout: float) -> Traffic:
    """Traffic of an iteration.

    Sharded over n GPUs: a pass without gradients gathers all weights once, a forward and backward pass twice, and
    reduces the trained weights' gradients once; a GPU receives (n - 1) / n of each. Replicas: each update's gradients
    are averaged once, 2 (n - 1) / n of them by a ring. One GPU: none.

    Args:
        settings: Sizes.
        iteration: Passes of the iteration.
        heldout: Held-out evaluations an iteration, on average.
    """
    n = settings.processes
    if n == 1:
        return Traffic(0.0, 0.0, 0.0)
    received, trained = (n - 1) / n, settings.tuning.trained_weights
    if not settings.shards:
        updates = settings.params.train.updates_per_iteration
        return Traffic(0.0, 0.0, 2 * received * updates * FLOAT32 * trained)
    counts = (iteration.rollout, iteration.old_log_probs, iteration.ratio, iteration.reference)
    without = sum(count.passes for count in counts) + heldout * iteration.heldout.passes
    sweeps = without + 2 * iteration.update.passes
    return Traffic(
        gathered=received * sweeps * sweep_bytes(settings),
        reduced=received * iteration.update.passes * FLOAT32 * trained,
        averaged=0.0,
    )
