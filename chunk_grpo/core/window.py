"""A window of steps: those that take noise, and are trained, in an iteration."""

from collections.abc import Sequence

import torch


def window_steps(iteration: int, num_sde_steps: int, size: int, stride: int, every: int) -> tuple[int, ...]:
    """The steps of the window in an iteration; all others are ODE steps.

    MixGRPO (arXiv 2507.21802): the window begins at step 0, the noisiest, and every `every` iterations moves
    `stride` steps towards the image. Its settings are size 4, stride 1 and every 25. After the last position
    it returns to the start, as in the released training script (`--roll_back`); those runs of 300 iterations
    and 25 steps end before they get there. The released window shrinks at the end of the grid until it is
    empty; this one keeps its size: a last move beyond the grid is shortened.

    Args:
        iteration: Training iteration, from 1.
        num_sde_steps: Number of steps that can take noise, N = S - 1.
        size: Steps in the window, from 1 to N.
        stride: Steps per move, from 1 to `size`, so that no step is left out.
        every: Iterations between moves, at least 1.

    Returns:
        `size` consecutive steps of 0 .. N - 1, in order; `rollout_sde` takes them as `sde_steps`.

    Raises:
        ValueError: An argument lies outside its range.
    """
    if iteration < 1:
        raise ValueError(f"iteration must be at least 1, got {iteration}")
    if not 1 <= size <= num_sde_steps:
        raise ValueError(f"size must be from 1 to the number of noisy steps {num_sde_steps}, got {size}")
    if not 1 <= stride <= size:
        raise ValueError(f"stride must be from 1 to the window's size {size}, got {stride}")
    if every < 1:
        raise ValueError(f"every must be at least 1, got {every}")
    last_start = num_sde_steps - size
    num_positions = 1 + -(-last_start // stride)  # rounded up: the shortened move counts
    position = (iteration - 1) // every % num_positions
    start = min(position * stride, last_start)
    return tuple(range(start, start + size))


def drawn_window_steps(starts: Sequence[int], size: int, generator: torch.Generator) -> tuple[int, ...]:
    """The steps of a window whose first step is drawn; all others are ODE steps.

    Flow-GRPO-Fast, in flow_grpo's and verl-omni's code: two of ten steps, within the first half.

    Args:
        starts: Steps at which the window may begin, all equally likely.
        size: Steps in the window, at least 1.
        generator: Source of the draw.

    Returns:
        `size` consecutive steps, in order.

    Raises:
        ValueError: There is no step to begin at, or `size` is below 1.
    """
    if not starts or size < 1:
        raise ValueError(f"a window needs starts and a size of at least 1, got {tuple(starts)} and {size}")
    start = starts[int(torch.randint(len(starts), (), generator=generator))]
    return tuple(range(start, start + size))
