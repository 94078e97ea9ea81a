"""A small random FluxPipeline in the real layout. Its text encoders are the toy's."""

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

from tests.families.case import Case
from tests.families.small_parts import TINY, small_vae

CASE = Case((1.0, 2.5), lambda s, n: {"true_cfg_scale": s, "negative_prompt": n, "guidance_scale": 3.5}, tokens=8)


def random_pipeline() -> FluxPipeline:
    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=64, pooled_projection_dim=64, guidance_embeds=True, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    vae = small_vae(0.3611, 0.1159)
    toy = FluxPipeline.from_pretrained(TINY, transformer=None, vae=None, dtype=torch.float32)
    parts = {name: getattr(toy, name) for name in ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")}
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True)
    return FluxPipeline(transformer=transformer, vae=vae, scheduler=scheduler, **parts)
