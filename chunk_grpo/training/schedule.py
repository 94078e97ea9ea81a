"""Which prompts an iteration trains on."""

from __future__ import annotations

import torch

from chunk_grpo.seeding import generator


def prompts_of_iteration(iteration: int, count: int, total: int, seed: int) -> list[int]:
    """Which prompts an iteration uses: epochs of seeded shuffles, each prompt once an epoch.

    Args:
        iteration: 0-based.
        count: Prompts an iteration.
        total: Prompts there are.
        seed: Training seed.
    """
    first = iteration * count
    picked: list[int] = []
    while len(picked) < count:
        epoch, start = divmod(first + len(picked), total)
        order = torch.randperm(total, generator=generator("prompt-order", seed, epoch)).tolist()
        picked += order[start : start + count - len(picked)]
    return picked
