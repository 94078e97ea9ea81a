"""The chunk update with all activations of a chunk held, for comparison with our two-pass update."""

from __future__ import annotations

import torch

from benchmarks.reference import Trajectories, chunk_surrogate
from chunk_grpo.core.chunking import ChunkPlan
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.stopping import Check
from chunk_grpo.training.update import Update, UpdateStats


def held_gradient(update: Update, processes: Processes, *, on_policy: bool, check: Check) -> UpdateStats:
    """Replacement of `Update.accumulate_gradient`: plain autograd, one micro-batch of trajectories and chunk at a time.

    It needs one forward and one backward pass per item, also off policy, and the memory of all steps of a chunk. It
    supports only one plan for all trajectories, without divergence, and returns statistics as if all ratios were 1.
    """
    batch, chunks = update._batch, update._batch.chunks
    plan = ChunkPlan(tuple(chunks.assignment.sizes[0].tolist()))
    at_once = max(len(part) for part in update._packing.all)
    counts = chunks.selected.sum(dim=1)
    for chunk, (first, size) in enumerate(zip(plan.first_steps, plan.sizes, strict=True)):
        rows = chunks.selected[:, chunk].nonzero().flatten()
        for part in rows.split(at_once):
            check()
            if len(part) == 0:
                continue
            surrogate = chunk_surrogate(
                update._policy,
                update._grid,
                update._objective.clip_range,
                Trajectories(
                    batch.states[part],
                    batch.old_log_probs[part],
                    batch.conditioning.rows(part),
                    batch.advantages[part],
                ),
                range(first, first + size),
            )
            processes.backward(-(surrogate / (len(counts) * counts[part])).sum())
    return update._statistics(update._old, 0.0, torch.zeros(sum(len(part) for part in update._packing.all)))
