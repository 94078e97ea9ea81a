"""A small random ZImagePipeline in the real layout."""

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from transformers import Qwen3Config, Qwen3Model

from tests.families.case import Case, as_pixels
from tests.families.language_models import byte_tokenizer

CASE = Case(
    (1.0, 4.0), lambda s, n: {"guidance_scale": s - 1, "negative_prompt": n}, tokens=96,
    given=as_pixels, found=as_pixels,
)  # fmt: skip


def random_pipeline() -> ZImagePipeline:
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    text_encoder = Qwen3Model(
        Qwen3Config(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=3, head_dim=16,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
        )
    )  # fmt: skip
    transformer = ZImageTransformer2DModel(
        in_channels=4, dim=64, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=32,
        axes_dims=[8, 12, 12], axes_lens=[256, 64, 64],
    )  # fmt: skip
    for weight in (transformer.x_pad_token, transformer.cap_pad_token):
        torch.nn.init.normal_(weight)
    vae = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 3, up_block_types=["UpDecoderBlock2D"] * 3,
        block_out_channels=[8, 8, 16], layers_per_block=1, latent_channels=4, norm_num_groups=4,
        use_quant_conv=False, use_post_quant_conv=False, scaling_factor=0.3611, shift_factor=0.1159,
    )  # fmt: skip
    return ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), vae=vae, text_encoder=text_encoder,
        tokenizer=tokenizer, transformer=transformer,
    )  # fmt: skip
