"""Noise levels of a sampler. Stages that draw nothing do not import this file, so that an edit of core spares them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from chunk_grpo.core.flow import time_grid
from chunk_grpo.families.base import Family


def times_of(num_steps: int, shift: float | None, family: Callable[[], Family]) -> Tensor:
    """Noise levels [S + 1] of a time grid; without a shift that of the pipeline of `family`, with the part "vae"."""
    return family().pipeline_times(num_steps) if shift is None else time_grid(num_steps, shift)
