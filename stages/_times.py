"""The time grid of a sampler."""

from collections.abc import Callable

from torch import Tensor

from chunk_grpo.config.models import GenerateParams, SamplingParams
from chunk_grpo.core.flow import time_grid
from chunk_grpo.families.base import Family


def times_of(sampler: SamplingParams | GenerateParams, family: Callable[[], Family]) -> Tensor:
    """Noise levels [S + 1] of a sampler; `family`, with the part "vae", is loaded only for the pipeline's own grid."""
    if sampler.shift is None:
        return family().pipeline_times(sampler.num_steps)
    return time_grid(sampler.num_steps, sampler.shift)
