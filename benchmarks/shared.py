"""What several benchmarks share: the shipped toy, a profile of it, random inputs, and quiet libraries."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers.utils import logging as diffusers_logging
from torch import Tensor
from transformers.utils import logging as transformers_logging

from chunk_grpo.families.base import Conditioning
from chunk_grpo.families.models.flux import FluxFamily

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "assets" / "tiny-flux"
# fmt: off
PROFILE = (
    0.749, 0.772, 0.538, 0.455, 0.408, 0.373, 0.36, 0.344, 0.346, 0.343, 0.345, 0.355, 0.363, 0.369, 0.378, 0.383,
)
# fmt: on
"""Relative L1 distances of the shipped checkpoint's 16 noisy steps."""


def random_inputs(
    family: FluxFamily, count: int, text_tokens: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor, Conditioning]:
    """Random arguments of the family's velocity for `count` states at noise level 0.5."""
    stream, config = torch.Generator().manual_seed(0), family.transformer.config
    x = torch.randn(count, *family.latent_shape, generator=stream).to(device)
    text = torch.randn(count, text_tokens, config.joint_attention_dim, generator=stream)
    pooled = torch.randn(count, config.pooled_projection_dim, generator=stream)
    conditioning = Conditioning({"prompt_embeds": text, "pooled": pooled})
    return x, torch.full((count,), 0.5, device=device), conditioning.to(device)


def quiet() -> None:
    """Disable the libraries' progress bars, which would disturb the benchmark's own."""
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
