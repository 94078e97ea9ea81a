"""Prompts of an iteration, and its starts: the initial noises, which the processes share.

A start is the initial noise of one trajectory, or of one ODE run with its branches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chunk_grpo.config import BranchingParams, TrainParams
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


def starts_per_prompt(group_size: int, branching: BranchingParams | None) -> int:
    """Number of starts of a prompt: its images, or with branches its ODE runs."""
    return group_size // branching.children if branching else group_size


def starts_of_update(settings: TrainParams, branching: BranchingParams | None) -> int:
    """Number of starts of an update, which the processes divide evenly."""
    prompts = settings.prompts_per_iteration // settings.updates_per_iteration
    return prompts * starts_per_prompt(settings.group_size, branching)


def images_per_start(branching: BranchingParams | None) -> int:
    """Number of images of a start: one, or with branches the children of all branch points."""
    return branching.points * branching.children if branching else 1


def prompts_of_rows(starts: Sequence[int], group_size: int, branching: BranchingParams | None) -> list[int]:
    """Index of the prompt of each image of the starts, in the order of `Experience`."""
    per_prompt = starts_per_prompt(group_size, branching)
    return [start // per_prompt for start in starts for _ in range(images_per_start(branching))]
