"""Time grids of diffusers' pipelines, by their schedulers."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from torch import Tensor


def scheduler_times(scheduler: Any, num_steps: int, dynamic_shift: float, *, is_even: bool) -> Tensor:
    """Noise levels of a pipeline's call.

    Args:
        scheduler: FlowMatchEulerDiscreteScheduler of the checkpoint; it is not changed.
        num_steps: Number of steps S.
        dynamic_shift: Logarithm of the shift, mu; unused by a scheduler with a static shift.
        is_even: Whether the pipeline gives the levels 1, 1 - 1/S, ..., 1/S, which the scheduler shifts once; else they
            are its own, of which a static shift has already moved the last.

    Returns:
        float64 [S + 1].
    """
    own = type(scheduler).from_config(scheduler.config)
    even = torch.linspace(1, 1 / num_steps, num_steps, dtype=torch.float64).tolist()
    levels = {"sigmas": even} if is_even else {"num_inference_steps": num_steps}
    own.set_timesteps(mu=dynamic_shift if own.config.use_dynamic_shifting else None, **levels)
    times: Tensor = own.sigmas.double()
    return times


def linear_shift(scheduler: Any, tokens: int) -> float:
    """Logarithm of the shift, mu, linear in the number of image tokens, by the scheduler's configuration."""
    names = ("base_image_seq_len", "max_image_seq_len", "base_shift", "max_shift")
    return float(calculate_shift(tokens, *(scheduler.config[name] for name in names)))
