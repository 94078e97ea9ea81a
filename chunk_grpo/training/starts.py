"""Starts of an iteration: the initial noises, which the processes share, and the images that come from each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chunk_grpo.config import BranchingParams, TrainParams
from chunk_grpo.families.prompts import PromptSet


@dataclass(frozen=True)
class Iteration:
    """This process's share of an iteration.

    A start is the initial noise of one trajectory, or of one ODE run with its branches. The starts of all processes are
    numbered in the order of the prompts; the number names the noise, so the shares do not affect the images.
    """

    number: int
    """Number of the iteration, from 1."""
    prompts: PromptSet
    """Prompts of all processes, P."""
    starts: Sequence[int]
    """Numbers of this process's starts."""


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
