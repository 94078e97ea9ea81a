"""Bytes that a GPU receives in an iteration of training, by collective."""

from __future__ import annotations

from dataclasses import dataclass

from chunk_grpo.planning.machines import Machine
from chunk_grpo.planning.passes import Iteration
from chunk_grpo.planning.settings import Settings

FLOAT32 = 4


@dataclass(frozen=True)
class Traffic:
    """Bytes that one GPU receives."""

    gathered: float
    """All-gathers of sharded weights."""
    reduced: float
    """Reduce-scatters of gradients, float32."""
    averaged: float
    """All-reduces of gradients, float32: of replicas, or of the shards of machines."""
    between: float = 0.0
    """Part of the sum that comes from other machines, each byte once a machine, divided by its GPUs."""

    @property
    def bytes(self) -> float:
        """Sum."""
        return self.gathered + self.reduced + self.averaged

    def seconds(self, machine: Machine) -> float:
        """Seconds inside a machine and between machines, one after the other."""
        return self.bytes / (machine.gbs * 1e9) + self.between / (machine.network_gbs * 1e9)


def sweep_bytes(settings: Settings) -> float:
    """Weights that a pass of the network gathers: the network in the checkpoint's type, an adapter in float32."""
    extra = FLOAT32 * settings.network.trained_weights if settings.adapts else 0
    return float(settings.network.weights * settings.element + extra)


def traffic_of(settings: Settings, iteration: Iteration, heldout: float) -> Traffic:
    """Traffic of an iteration, with `heldout` held-out evaluations on average.

    Sharded over s GPUs: a pass without gradients gathers all weights once, a forward and backward pass twice, and
    reduces the trained weights' gradients once; a GPU receives (s - 1) / s of each. n replicas: each update's gradients
    are averaged once, 2 (n - 1) / n of them by a ring. With hybrid sharding m machines average their shards so, 1 / s
    of the gradients a GPU. Of what is shared by all GPUs, (m - 1) / m come from other machines.
    """
    n, m, s = settings.processes, settings.machines, settings.spread
    gradients = float(FLOAT32 * settings.network.trained_weights)
    updates, abroad = settings.params.train.updates_per_iteration, (m - 1) / m
    if not settings.shards:
        averaged = 2 * updates * gradients
        return Traffic(0.0, 0.0, (n - 1) / n * averaged, abroad * averaged / settings.processes_each)
    counts = (iteration.rollout, iteration.old_log_probs, iteration.ratio, iteration.reference)
    without = sum(count.passes for count in counts) + heldout * iteration.heldout.passes
    sweeps = settings.passes * (without + 2 * iteration.update.passes)
    gathered, reduced = sweeps * sweep_bytes(settings), settings.passes * iteration.update.passes * gradients
    inside = (s - 1) / s
    if settings.is_hybrid:
        averaged = 2 * abroad * updates * gradients / s
        return Traffic(inside * gathered, inside * reduced, averaged, averaged)
    return Traffic(
        inside * gathered, inside * reduced, 0.0, abroad * (gathered + reduced) / settings.processes_each
    )
