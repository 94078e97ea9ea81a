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


def scheduled_prompts(seed: int, iterations: int, count: int, total: int) -> list[int]:
    """Sorted indices of the prompts that any iteration of a training uses; early stopping uses fewer.

    Args:
        seed: Training seed.
        iterations: Number of iterations.
        count: Number of prompts per iteration.
        total: Number of training prompts.
    """
    # The first iterations * count draws are whole epochs and the start of another.
    return sorted(prompts_of_iteration(0, min(iterations * count, total), total, seed))
