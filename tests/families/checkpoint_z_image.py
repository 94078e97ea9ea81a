"""A small random ZImagePipeline in the real layout."""

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from transformers import Qwen3Model

from tests.families.case import Case, as_pixels
from tests.families.small_parts import byte_tokenizer, small_qwen3, small_vae

CASE = Case(
    (1.0, 4.0), lambda s, n: {"guidance_scale": s - 1, "negative_prompt": n}, tokens=96,
    given=as_pixels, found=as_pixels,
)  # fmt: skip


def random_pipeline() -> ZImagePipeline:
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    text_encoder = Qwen3Model(
        small_qwen3(len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=3, head_dim=16)
    )
    transformer = ZImageTransformer2DModel(
        in_channels=4, dim=64, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=32,
        axes_dims=[8, 12, 12], axes_lens=[256, 64, 64],
    )  # fmt: skip
    for weight in (transformer.x_pad_token, transformer.cap_pad_token):
        torch.nn.init.normal_(weight)
    vae = small_vae(0.3611, 0.1159)
    return ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), vae=vae, text_encoder=text_encoder,
        tokenizer=tokenizer, transformer=transformer,
    )  # fmt: skip
