"""Lower bound of the evaluations of the network in an iteration, by formula.

With B images, S sampling steps and n_u items, the (sample, step) pairs of the chunks that update u trains:

    rollout     B S forwards
    update u    n_u forwards and n_u backwards

Off policy, a coefficient needs the ratio of the whole chunk before the first backward pass. A trainer that holds all
activations of a chunk has the ratio then; one that holds only a part needs one more forward per item, which is not
counted. Clipped chunks are counted: clipping is known only after the ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.ablations import ITERATION, SEED
from benchmarks.workloads import Workload
from chunk_grpo.training.chunk_selection import ChunkSelector, DrawContext
from chunk_grpo.training.rollouts import SampledTrajectories


@dataclass(frozen=True)
class LowerBound:
    """Least evaluations of an iteration."""

    rollout: int
    """Number of forwards of the rollout."""
    items: tuple[int, ...]
    """Number of items of each update, n_u."""

    @property
    def forwards(self) -> int:
        """Number of states whose velocity must be computed."""
        return self.rollout + sum(self.items)

    @property
    def backwards(self) -> int:
        """Number of states that need a backward pass."""
        return sum(self.items)


def lower_bound(workload: Workload) -> LowerBound:
    """Least evaluations of a workload; the trained chunks depend only on the seed."""
    params, method = workload.params(), workload.method()
    S, N = params.sampling.num_steps, method.grid.num_sde_steps
    chunks, updates = ChunkSelector(method), params.train.updates_per_iteration
    size = workload.images // updates
    rows = SampledTrajectories(
        states=torch.zeros(size, S + 1, 1, 1),
        first_step=torch.zeros(size, dtype=torch.int64),
        noisy=torch.ones(size, N, dtype=torch.bool),
        log_probs=torch.zeros(size, N),
        means=None,
        finals=torch.zeros(size, 1, 1),
    )
    items = []
    for update in range(updates):
        context = DrawContext(SEED, ITERATION, params.train.iterations, update, range(size), size)
        trained = chunks.select(rows, context)
        items.append(int((trained.selected * trained.assignment.sizes).sum()))
    return LowerBound(workload.images * S, tuple(items))
