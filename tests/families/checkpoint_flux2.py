"""A small random Flux2Pipeline in the real layout, and what FLUX.2-klein shares with it.

FLUX.2-dev's tokenizer comes with a processor of images, which needs torchvision; here it is a tokenizer alone.
"""

import torch
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2Pipeline, Flux2Transformer2DModel
from transformers import Mistral3Config, Mistral3ForConditionalGeneration

from tests.families.case import Case, as_channels
from tests.families.small_parts import byte_tokenizer

CASE = Case(
    (1.0,), lambda s, n: {"guidance_scale": 2.5}, tokens=300, given=as_channels, embedded=2.5,
    sources=((64, 96), (72, 64)),
)  # fmt: skip

SCHEDULER = {"shift": 3.0, "use_dynamic_shifting": True}


def random_network(*, guidance_embeds: bool) -> Flux2Transformer2DModel:
    """Text of three layers of width 16."""
    return Flux2Transformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=48, axes_dims_rope=(4, 4, 4, 4), guidance_embeds=guidance_embeds,
    )  # fmt: skip


def random_vae() -> AutoencoderKLFlux2:
    """Its batch norm has statistics other than 0 and 1."""
    vae = AutoencoderKLFlux2(
        down_block_types=["DownEncoderBlock2D"] * 3, up_block_types=["UpDecoderBlock2D"] * 3,
        block_out_channels=[8, 8, 16], layers_per_block=1, latent_channels=4, norm_num_groups=4,
    )  # fmt: skip
    vae.bn.running_mean.normal_()
    vae.bn.running_var.uniform_(0.5, 2)
    return vae


def random_pipeline() -> Flux2Pipeline:
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = Mistral3Config(
        text_config={
            "model_type": "mistral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 31,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": len(tokenizer),
        },
        vision_config={
            "model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "head_dim": 8, "image_size": 28, "patch_size": 14,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
    )  # fmt: skip
    return Flux2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**SCHEDULER), vae=random_vae(),
        text_encoder=Mistral3ForConditionalGeneration(config), tokenizer=tokenizer,
        transformer=random_network(guidance_embeds=True),
    )  # fmt: skip
