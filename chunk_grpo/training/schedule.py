"""Order of the training prompts."""

from __future__ import annotations

import torch

from chunk_grpo.seeding import generator


def prompts_of_iteration(iteration: int, count: int, total: int, seed: int) -> list[int]:
    """Indices of the prompts of an iteration: seeded shuffles, each prompt once per epoch.

    Args:
        iteration: Index of the iteration, from 0.
        count: Number of prompts per iteration.
        total: Number of training prompts.
        seed: Training seed.
    """
    first = iteration * count
    picked: list[int] = []
    while len(picked) < count:
        epoch, start = divmod(first + len(picked), total)
        order = torch.randperm(total, generator=generator("prompt-order", seed, epoch)).tolist()
        picked += order[start : start + count - len(picked)]
    return picked
