"""How the section `model` of params.yaml loads a checkpoint."""

from __future__ import annotations

import torch

from chunk_grpo.config.models import GenerateParams, ModelParams
from chunk_grpo.families.base import LoadOptions, default_device

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def options_of(model: ModelParams, cfg_scale: float, size: ModelParams | GenerateParams) -> LoadOptions:
    """Settings of the loaded checkpoint.

    Args:
        model: The section.
        cfg_scale: Scale of classifier-free guidance; 1: none.
        size: Section with the size of the images.
    """
    return LoadOptions(
        checkpoint=model.checkpoint,
        revision=model.revision,
        dtype=DTYPES[model.dtype],
        height=size.height,
        width=size.width,
        guidance_scale=model.guidance_scale,
        cfg_scale=cfg_scale,
        cfg_passes=model.cfg_passes,
        max_sequence_length=model.max_sequence_length,
        device=default_device(),
        base_precision=model.base_precision,
        block_swap=model.block_swap,
        text_precision=model.text_precision,
        attention_backend=model.attention_backend,
    )
